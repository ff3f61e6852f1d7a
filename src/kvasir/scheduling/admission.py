"""The door: what can never be served is refused with the numbers, before anything changes."""

from kvasir.core.errors import BadRequestError, ContextLengthError, NeverFitsError, OverloadedError
from kvasir.core.request import Request
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.manager import KVManager
from kvasir.scheduling.config import SchedulerConfig


def check_request(request: Request, manager: KVManager, config: SchedulerConfig, num_waiting: int) -> int:
    """The most tokens each sequence of ``request`` may generate.  Raises a refusal if it can never be served."""
    num_prompt = len(request.prompt_token_ids)
    sampling = request.sampling
    max_model_len = manager.config.max_model_len
    if num_prompt == 0:
        raise BadRequestError("The prompt has no tokens; send at least one.", param="prompt")
    if num_prompt >= max_model_len:
        raise ContextLengthError(
            f"The prompt has {num_prompt} tokens, but prompt and output together may have at most {max_model_len}; "
            f"shorten the prompt to at most {max_model_len - 1} tokens.",
            param="prompt",
        )
    room = max_model_len - num_prompt
    if sampling.max_tokens is not None and sampling.max_tokens > room:
        raise ContextLengthError(
            f"The prompt has {num_prompt} tokens and max_tokens is {sampling.max_tokens}, together "
            f"{num_prompt + sampling.max_tokens}, but the context holds {max_model_len}; ask for at most {room}.",
            param="max_tokens",
        )
    max_tokens = sampling.max_tokens if sampling.max_tokens is not None else room
    if sampling.min_tokens > max_tokens:
        raise BadRequestError(
            f"min_tokens {sampling.min_tokens} is more than the {max_tokens} tokens that can be generated.",
            param="min_tokens",
        )
    _check_parallel(request, manager, config)
    num_slots = manager.eviction.peak_slots(num_prompt, num_prompt + max_tokens, request.num_pinned_tokens)
    if not manager.can_ever_hold(num_slots):
        raise _never_fits(manager, num_prompt, max_tokens, num_slots)
    if num_waiting >= config.max_waiting:
        raise OverloadedError(f"{num_waiting} requests are waiting already, the most the queue holds; try again later.")
    return max_tokens


def _never_fits(manager: KVManager, num_prompt: int, max_tokens: int, num_slots: int) -> NeverFitsError:
    """Names the group that is shortest of blocks, where there are several."""
    needs = [spec.max_blocks(num_slots, manager.config.max_chunk_tokens) for spec in manager.groups]
    g = max(range(len(needs)), key=lambda g: needs[g] / manager.pools[g].num_blocks)
    cache = "KV cache" if len(needs) == 1 else f"KV cache of the heads with {manager.groups[g].retention} retention"
    return NeverFitsError(
        f"The request needs up to {needs[g]} blocks of {manager.block_size} tokens ({num_prompt} prompt + {max_tokens} "
        f"output tokens), but the whole {cache} has {manager.pools[g].num_blocks}; shorten it or raise "
        f"--kv-cache-memory.",
        param="max_tokens",
    )


def _check_parallel(request: Request, manager: KVManager, config: SchedulerConfig) -> None:
    n = request.sampling.n
    if n > config.max_num_seqs:
        raise BadRequestError(
            f"n is {n}, but at most {config.max_num_seqs} sequences run at once (--max-num-seqs); ask for fewer.",
            param="n",
        )
    if n > 1 and manager.config.allocation is AllocationKind.CONTIGUOUS:
        raise BadRequestError(
            f"n is {n}, but --kv-allocation contiguous cannot share the prompt between sequences; ask for n=1.",
            param="n",
        )
