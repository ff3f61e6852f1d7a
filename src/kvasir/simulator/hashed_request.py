"""Prompts known by block ids only, as requests the real scheduler and block manager take."""

from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.core.sequence import Sequence
from kvasir.workload.traces.trace import TraceRequest

_UNKNOWN = -1
"""Starts the content of a block that nobody else can have: output, or prompt without ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedRequest(Request):
    """``prompt_token_ids`` are zeros that only count; ``hash_ids`` say what is shared (see ``TraceRequest``)."""

    hash_ids: tuple[int, ...]
    hash_block_size: int


def make_request(recorded: TraceRequest, hash_block_size: int) -> HashedRequest:
    """The request of a trace; its answer has exactly the recorded number of tokens."""
    return HashedRequest(
        request_id=recorded.request_id,
        prompt_token_ids=(0,) * recorded.num_prompt_tokens,
        sampling=SamplingParams(temperature=0.0, max_tokens=recorded.num_output_tokens, ignore_eos=True),
        hash_ids=tuple(recorded.hash_ids),
        hash_block_size=hash_block_size,
    )


def hashed_content(sequence: Sequence, index: int, block_size: int) -> tuple[int, ...]:
    """What names block ``index`` of a ``HashedRequest``'s sequence (a ``ContentOf``).

    Blocks of the cache may be larger than the trace's (several ids name one) or smaller (an id and an offset do):

        trace, 64 tokens an id   |      7      |      8      |      9      |
        cache, block of 128      |         (7, 8)            | ...
        cache, block of 32       |(7, 0)|(7,32)|(8, 0)|(8,32)| ...

    A block that holds output is new to everybody: traces do not say what was answered.
    """
    request = sequence.request
    if not isinstance(request, HashedRequest):
        raise TypeError(f"{request.request_id!r} is no hashed request")
    start = index * block_size
    end = start + block_size
    size = request.hash_block_size
    if end > sequence.num_prompt_tokens or end > len(request.hash_ids) * size:
        return (_UNKNOWN, sequence.sequence_id, index)
    if block_size >= size:
        return request.hash_ids[start // size : end // size]
    return (request.hash_ids[start // size], start % size)


def check_block_sizes(block_size: int, hash_block_size: int) -> None:
    """Raise ``ConfigError`` unless one size divides the other; a trace without ids (size 0) goes with any."""
    if hash_block_size and max(block_size, hash_block_size) % min(block_size, hash_block_size):
        raise ConfigError(
            f"--block-size {block_size} and the trace's blocks of {hash_block_size} tokens do not line up; take a "
            f"divisor or a multiple of {hash_block_size}."
        )
