"""How the tokens of one step are shared between prefills.

Decodes take one token each before this.  What is left is shared so that short prompts pass long ones without starving
them: the prefill that is first in order of service gets a guaranteed quarter, the rest goes to whoever is nearest to
its first token (shortest remaining time first minimises the mean time to first token).
"""

from collections.abc import Sequence

GUARANTEED_FRACTION = 4
"""The first prefill gets at least 1 / GUARANTEED_FRACTION of the step's prefill tokens."""


def share_tokens(remaining: Sequence[int], budget: int, max_share: int = 0) -> list[int]:
    """Tokens for each prefill; ``remaining[i]`` is what prefill i still needs, in order of service.

    ``max_share`` bounds a single prefill while there are several (0: no bound).  Every token that anybody can use is
    handed out: sum(result) == min(budget, what the bounds allow).  result[0] > 0 whenever budget > 0.
    """
    if not remaining:
        return []
    bound = max_share if max_share and len(remaining) > 1 else budget
    wanted = [min(need, bound) for need in remaining]
    shares = [0] * len(wanted)
    shares[0] = min(wanted[0], max(budget // GUARANTEED_FRACTION, min(budget, 1)))
    left = budget - shares[0]
    # Ties go to the one served first: sorted() is stable.
    for i in sorted(range(len(wanted)), key=lambda i: remaining[i]):
        extra = min(wanted[i] - shares[i], left)
        shares[i] += extra
        left -= extra
    return shares
