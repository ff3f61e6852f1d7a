"""The step as data: the scheduler writes a plan, the executor answers with a result; neither holds the other.

What is made once per sequence and step is a NamedTuple: several times cheaper to make than a frozen dataclass.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvasir.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """Tells the executor about a sequence it does not know (first time, or again after preemption).

    ``token_ids`` is everything known so far (prompt and, after preemption, what was generated): the sampler's
    penalties need it.  ``index`` is the sequence's number within its request (its random stream).
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    index: int = 0


class TableUpdate(NamedTuple):
    """Write ``block_ids`` into the block table of (row's sequence, ``group_id``) from entry ``first_index`` on."""

    group_id: int
    first_index: int
    block_ids: tuple[int, ...]


class BlockCopy(NamedTuple):
    """Copy all layers and heads of block ``source`` to block ``target`` in ``group_id`` before the step computes."""

    group_id: int
    source: int
    target: int


class StepRow(NamedTuple):
    """One sequence's share of a step: compute ``token_ids`` at positions ``position, position + 1, ...``.

    ``table_updates`` are applied before computing.  ``sample_for`` lists the sequences that draw a token from the
    logits of the row's last position: empty while a prefill is not done, the sequence itself in decode, and the
    sequence with all its siblings when a prompt shared by n > 1 is finished.
    """

    sequence_id: int
    position: int
    token_ids: tuple[int, ...]
    table_updates: tuple[TableUpdate, ...] = ()
    sample_for: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one forward pass does.  Applied by the executor in this order: forget ``ended``, learn ``starts``, do
    ``copies``, apply each row's table updates, compute, sample.

    A sibling (n > 1) is started in the plan that finishes the shared prompt, so that its first token can be drawn;
    its block table arrives whole with its own first row."""

    step_id: int
    rows: tuple[StepRow, ...]
    starts: tuple[SequenceStart, ...] = ()
    ended: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


class TokenLogprobs(NamedTuple):
    """Log-probability of the drawn token and the ``top`` alternatives as (token id, logprob), best first.

    Taken from the model's distribution after penalties and bias, before temperature and truncation."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class SampledToken(NamedTuple):
    sequence_id: int
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Answer to the plan with the same ``step_id``: one token for every entry of every row's ``sample_for``.

    ``failed`` maps a sequence to the reason its logits were unusable (NaN): that sequence ends with an error, the
    others go on."""

    step_id: int
    tokens: tuple[SampledToken, ...]
    failed: dict[int, str] = field(default_factory=dict)
    duration_s: float = 0.0
