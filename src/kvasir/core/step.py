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


class Compaction(NamedTuple):
    """In ``group_id``, every head keeps ``num_kept`` of the ``num_tokens`` tokens in block table ``sources``, packed in
    their order into block table ``targets``, before the step computes.

    Which ones is a head's own matter, decided by the eviction rule; the first ``num_pinned`` are always among them.
    A target may also be a source.
    """

    group_id: int
    num_tokens: int
    num_pinned: int
    num_kept: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class StepRow(NamedTuple):
    """One sequence's share of a step: compute ``token_ids`` at positions ``position, position + 1, ...``.

    ``table_updates`` are applied before computing.  ``sample_for`` lists the sequences that draw a token from the
    logits of the row's last position: empty while a prefill is not done, the sequence itself in decode, and the
    sequence with all its siblings when a prompt shared by n > 1 is finished.

    ``num_evicted``: the token at position p is in slot p - num_evicted of the block table, and sees all slots up to it.
    """

    sequence_id: int
    position: int
    token_ids: tuple[int, ...]
    table_updates: tuple[TableUpdate, ...] = ()
    sample_for: tuple[int, ...] = ()
    num_evicted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one forward pass does.  Applied by the executor in this order: forget ``ended``, learn ``starts``, do
    ``compactions`` one after the other, do ``copies``, apply each row's table updates, compute, sample.

    A sibling (n > 1) is started in the plan that finishes the shared prompt, so that its first token can be drawn;
    its block table arrives whole with its own first row."""

    step_id: int
    rows: tuple[StepRow, ...]
    starts: tuple[SequenceStart, ...] = ()
    ended: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    compactions: tuple[Compaction, ...] = ()

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
