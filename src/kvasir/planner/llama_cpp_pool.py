"""llama.cpp's cache: cells for ``-c`` tokens in all, allocated at start; the sliding cache grows with the slots."""

from dataclasses import dataclass, replace

from kvasir.core.errors import ConfigError
from kvasir.planner.kv_groups import StoreFormat, StoreSpec, kv_groups
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.pool import Pool, Resource

CELL_PAD = 256
_WINDOWS_IGNORED = frozenset(
    {"llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "starcoder2"}
)
"""Architectures whose windows llama.cpp does not use: every layer gets the full cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings:
    """``context`` is ``-c``: of all ``parallel`` slots together.  ``is_unified``: one buffer that all slots share,
    else each slot has its own part of everything."""

    context: int
    parallel: int = 1
    ubatch: int = 512
    is_unified: bool = True
    is_swa_full: bool = False

    def __post_init__(self) -> None:
        if self.context < self.parallel:
            raise ConfigError(f"-c {self.context} is shared by {self.parallel} slots, so none would have a token.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBuffer:
    """One allocation as llama.cpp logs it: ``num_cells`` (of all streams together) over ``num_layers``."""

    num_cells: int
    num_layers: int
    num_bytes: int
    is_sliding: bool


def llama_cpp_view(shape: ModelShape) -> ModelShape:
    """``shape`` as llama.cpp caches it."""
    if shape.architecture not in _WINDOWS_IGNORED or not shape.windows:
        return shape
    layers = tuple(
        replace(layer, caches=tuple(replace(cache, window=None) for cache in layer.caches)) for layer in shape.layers
    )
    return replace(shape, layers=layers)


def llama_cpp_buffers(shape: ModelShape, form: StoreFormat, settings: LlamaCppSettings) -> tuple[CacheBuffer, ...]:
    """Every cache buffer, exact.  ``form.block_size`` and ``tensor_parallel`` do not matter here."""
    return tuple(_buffer(spec, settings) for spec in kv_groups(shape, form))


def _buffer(spec: StoreSpec, settings: LlamaCppSettings) -> CacheBuffer:
    streams = 1 if settings.is_unified else settings.parallel
    full_cells = _padded(settings.context // streams)
    cells = full_cells
    window = spec.retention.window
    if window and not settings.is_swa_full:
        windows = settings.parallel if settings.is_unified else 1
        cells = _padded(min(full_cells, window * windows + settings.ubatch))
    num_cells = cells * streams
    return CacheBuffer(
        num_cells=num_cells,
        num_layers=spec.num_layers,
        num_bytes=round(num_cells * spec.bytes_per_token),
        is_sliding=bool(window),
    )


def _padded(cells: int) -> int:
    return -(-cells // CELL_PAD) * CELL_PAD


def llama_cpp_pool(shape: ModelShape, form: StoreFormat, settings: LlamaCppSettings) -> Pool:
    """What the buffers hold: cells shared by all slots (unified), or a fixed part for each."""
    buffers = llama_cpp_buffers(shape, form, settings)
    state_bytes = shape.state_bytes * settings.parallel
    per_slot = settings.context // settings.parallel
    capacity = settings.context if settings.is_unified else settings.parallel

    def cost(num_tokens: int) -> float:
        if settings.is_unified:
            return num_tokens
        return 1 if num_tokens <= per_slot else float("inf")

    return Pool(
        num_bytes=sum(buffer.num_bytes for buffer in buffers) + state_bytes,
        block_size=1,
        resources=(Resource(name="cells", capacity=capacity, cost=cost, is_prefix_shared=settings.is_unified),),
        num_blocks=tuple(buffer.num_cells for buffer in buffers),
        printed_tokens=settings.context,
        max_sequences=settings.parallel,
    )


def largest_context(shape: ModelShape, form: StoreFormat, settings: LlamaCppSettings, kv_bytes: int) -> int:
    """The largest ``-c``, a multiple of 256, whose buffers fit in ``kv_bytes``; 0 when none does."""

    def needs(steps: int) -> int:
        trial = LlamaCppSettings(
            context=steps * CELL_PAD,
            parallel=settings.parallel,
            ubatch=settings.ubatch,
            is_unified=settings.is_unified,
            is_swa_full=settings.is_swa_full,
        )
        buffers = llama_cpp_buffers(shape, form, trial)
        return sum(buffer.num_bytes for buffer in buffers) + shape.state_bytes * settings.parallel

    fits, does_not = 0, shape.max_context * settings.parallel // CELL_PAD + 1
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        if needs(middle) <= kv_bytes:
            fits = middle
        else:
            does_not = middle
    return fits * CELL_PAD
