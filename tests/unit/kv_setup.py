"""Small layouts, managers and schedulers for tests of the control plane."""

from kvasir.core.clock import VirtualClock
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.core.sequence import Sequence
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.scheduling.config import SchedulerConfig
from kvasir.scheduling.scheduler import Scheduler

BLOCK_SIZE = 16


def make_layout(windows=(None,), block_size=BLOCK_SIZE) -> KVLayout:
    geometry = KVGeometry(num_layers=len(windows), num_kv_heads=2, head_dim=16, sliding_windows=tuple(windows))
    return KVLayout.from_geometry(geometry, block_size=block_size, k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16)


def make_manager(num_blocks=32, windows=(None,), max_model_len=256, chunk=64, **settings) -> KVManager:
    layout = make_layout(windows)
    counts = num_blocks if isinstance(num_blocks, tuple) else (num_blocks,) * len(layout.groups)
    return KVManager(
        KVManagerConfig(
            layout=layout, num_blocks=counts, max_model_len=max_model_len, max_chunk_tokens=chunk, **settings
        )
    )


def make_scheduler(manager: KVManager, **settings) -> Scheduler:
    settings = {"max_num_batched_tokens": manager.config.max_chunk_tokens, "max_num_seqs": 16} | settings
    return Scheduler(SchedulerConfig(**settings), manager, VirtualClock())


def make_request(request_id: str, prompt, max_tokens=8, **settings) -> Request:
    request_settings = {
        k: settings.pop(k) for k in ("priority", "cache_salt", "tenant", "eos_token_ids") if k in settings
    }
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **settings),
        **request_settings,
    )


def make_sequence(sequence_id: int, prompt, **settings) -> Sequence:
    return Sequence(sequence_id=sequence_id, request=make_request(f"r{sequence_id}", prompt, **settings))


def run_to_computed(manager: KVManager, sequence: Sequence) -> int:
    """Compute all of ``sequence`` in one go; returns the tokens found in the cache."""
    hit = manager.lookup(sequence)
    assert manager.reserve(sequence, sequence.num_tokens - hit.num_tokens, hit) is not None
    sequence.num_computed_tokens = sequence.num_tokens
    manager.commit(sequence)
    return hit.num_tokens
