"""Hit rates of a trace without time: every request meets the cache alone, in order, as in published studies.

The cache is the engine's block manager.  Conventions are those of kvcache-simulator (KVCache.AI), so that rates can be
compared: a hit is a run of blocks from the start of the prompt, weighted by tokens; the last, partly filled block
counts as a block; nothing is pinned, and blocks are evicted one by one as a prompt's blocks come in, so that a cache
may be smaller than a prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress
from kvasir.core.sequence import Sequence as EngineSequence
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.kv.spec import KVSpec
from kvasir.simulator.eviction import EvictionPolicy, FutureUses, free_list_maker
from kvasir.simulator.hashed_request import hashed_content, make_request
from kvasir.workload.traces.trace import Trace, TraceRequest

_REPORT_EVERY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReplay:
    """Tokens asked for and tokens found, per request in trace order.  ``num_blocks`` None: unlimited."""

    trace: str
    policy: EvictionPolicy
    num_blocks: int | None
    block_size: int
    prompt_tokens: tuple[int, ...]
    hit_tokens: tuple[int, ...]

    def hit_rate(self, from_share: float = 0.0) -> float:
        """Share of prompt tokens found by the requests after the first ``from_share`` of them (0.5: the last half,
        when the cache is warm)."""
        start = int(len(self.prompt_tokens) * from_share)
        wanted = sum(self.prompt_tokens[start:])
        return sum(self.hit_tokens[start:]) / wanted if wanted else 0.0


def replay_cache(
    trace: Trace, policy: EvictionPolicy, num_blocks: int | None = None, progress: Progress = no_progress
) -> CacheReplay:
    """Play ``trace`` against a cache of ``num_blocks`` blocks of the trace's own size.

    Raises ``ConfigError`` when the trace has no block ids."""
    if not trace.hash_block_size:
        raise ConfigError(f"The trace {trace.name} has no block ids, so nothing is known of what its prompts share.")
    most = num_blocks if num_blocks is not None else _num_distinct(trace)
    future = make_future(trace) if policy is EvictionPolicy.BELADY else None
    manager = _make_manager(trace, policy, most, future)
    stage = f"{policy.value}, {'unlimited' if num_blocks is None else f'{num_blocks:,} blocks'}"
    hits: list[int] = []
    for number, request in enumerate(trace.requests):
        sequence = whole_blocks(number, request, trace.hash_block_size)
        hits.append(min(manager.lookup(sequence).num_tokens, request.num_prompt_tokens))
        if future is not None:
            future.come(number)
        _touch(manager, sequence, len(request.hash_ids), is_head_first=policy is EvictionPolicy.FIFO)
        manager.release(sequence)
        if number % _REPORT_EVERY == 0:
            progress(stage, number / len(trace))
    progress(stage, 1.0)
    return CacheReplay(
        trace=trace.name,
        policy=policy,
        num_blocks=num_blocks,
        block_size=trace.hash_block_size,
        prompt_tokens=tuple(request.num_prompt_tokens for request in trace.requests),
        hit_tokens=tuple(hits),
    )


def make_future(trace: Trace) -> FutureUses:
    """The future of a trace replayed in blocks of its own size."""
    future = FutureUses()
    manager = _make_manager(trace, EvictionPolicy.LRU, 1, None)
    for number, request in enumerate(trace.requests):
        sequence = whole_blocks(number, request, trace.hash_block_size)
        future.expect(manager.keys_of(sequence, len(request.hash_ids)))
        manager.release(sequence)
    future.freeze()
    return future


def whole_blocks(number: int, request: TraceRequest, block_size: int) -> EngineSequence:
    """``request`` as a sequence whose every block is whole, and one token more: the engine never takes the last token
    from the cache, these studies do."""
    num_tokens = len(request.hash_ids) * block_size
    padded = TraceRequest(
        request_id=request.request_id,
        arrival_s=0.0,
        num_prompt_tokens=num_tokens + 1,
        num_output_tokens=1,
        hash_ids=request.hash_ids,
    )
    return EngineSequence(sequence_id=number, request=make_request(padded, block_size))


def _touch(manager: KVManager, sequence: EngineSequence, num_blocks: int, *, is_head_first: bool) -> None:
    """Use every block of ``sequence``, putting in those that are missing; one block at a time is held.

    The pool has one block more than the cache may keep.  Tail first, so that a prompt's start outlives its end; first
    in first out, which forgets uses, sees blocks in the order in which they are computed.
    """
    keys = manager.keys_of(sequence, num_blocks)
    index, pool = manager.index, manager.pools[0]
    places: Iterable[int] = range(num_blocks) if is_head_first else range(num_blocks - 1, -1, -1)
    for i in places:
        content = hashed_content(sequence, i, manager.block_size)
        entry = index.find(keys[i], content)
        block = entry.blocks[0] if entry is not None else None
        if block is not None:
            pool.acquire(block)
        else:
            block = pool.allocate()
            index.insert(keys[i], content, 0, block)
            pool.set_key(block, keys[i])
        pool.release(block)
        if pool.num_free == 0:
            pool.release(pool.allocate())


def _make_manager(trace: Trace, policy: EvictionPolicy, num_blocks: int, future: FutureUses | None) -> KVManager:
    longest = max(len(request.hash_ids) for request in trace.requests) * trace.hash_block_size + 1
    return KVManager(
        KVManagerConfig(
            layout=counting_layout(trace.hash_block_size),
            num_blocks=(num_blocks + 1,),
            max_model_len=longest,
            max_chunk_tokens=longest,
            content_of=hashed_content,
            make_free_list=free_list_maker(policy, future),
        )
    )


def counting_layout(block_size: int) -> KVLayout:
    """The smallest layout there is, for when blocks are only counted.  ``block_size`` is a multiple of 16."""
    if block_size % 16:
        raise ConfigError(f"The trace has blocks of {block_size} tokens; blocks are multiples of 16 here.")
    spec = KVSpec(
        block_size=block_size, head_dim=16, heads_by_layer=((0,),), k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16
    )
    return KVLayout(groups=(spec,), num_layers=1, num_kv_heads=1)


def _num_distinct(trace: Trace) -> int:
    ids: set[int] = set()
    for request in trace.requests:
        ids.update(request.hash_ids)
    return max(1, len(ids))


def hit_curve(
    trace: Trace, policies: Sequence[EvictionPolicy], sizes: Sequence[int | None], progress: Progress = no_progress
) -> list[CacheReplay]:
    """Every policy at every size, sizes outermost.  An unlimited cache is the same for all and is played once."""
    runs: list[CacheReplay] = []
    for num_blocks in sizes:
        chosen = policies if num_blocks is not None else [EvictionPolicy.LRU]
        runs.extend(replay_cache(trace, policy, num_blocks, progress) for policy in chosen)
    return runs
