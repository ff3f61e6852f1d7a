"""KV stores of any model under any engine, in the block arithmetic of ``KVSpec``; what one device holds of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kvasir.core.errors import ConfigError
from kvasir.kv.format_pair import split_pair
from kvasir.kv.format_spec import K_TILES, V_TILES, KVDtype, TensorSpec, TileRule
from kvasir.kv.retention import FULL, Retention, sliding
from kvasir.kv.spec import BlockArithmetic
from kvasir.planner.model_shape import LayerCache, ModelShape


class StoreDtype(Enum):
    """Formats that only other engines have.  fp8 is bare codes (vLLM, SGLang keep its scales with the weights); the q
    formats are llama.cpp's blocks of 32 elements with their scale; raw are bytes as they come."""

    FP8 = "fp8"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
    RAW = "raw"


AnyDtype = KVDtype | StoreDtype
_Q_BLOCK = 32
_Q_BLOCK_BYTES = {
    StoreDtype.Q8_0: 34,
    StoreDtype.Q5_1: 24,
    StoreDtype.Q5_0: 22,
    StoreDtype.Q4_1: 20,
    StoreDtype.Q4_0: 18,
}
_SYNONYMS = {"auto": "bf16", "f16": "fp16", "f32": "fp32", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}


_DENSE = (KVDtype.FP32, KVDtype.BF16, KVDtype.FP16)


def find_dtype(name: str, *, is_own: bool = False) -> AnyDtype:
    """A format by the name an engine gives it.  ``is_own``: of our engine, whose 8 and 4 bits are not the others'."""
    folded = _SYNONYMS.get(name.lower(), name.lower())
    others: tuple[AnyDtype, ...] = (*_DENSE, *(dtype for dtype in StoreDtype if dtype is not StoreDtype.RAW))
    known: tuple[AnyDtype, ...] = tuple(KVDtype) if is_own else others
    for dtype in known:
        if dtype.value == folded:
            return dtype
    raise ConfigError(f"There is no KV format {name!r}; known are {', '.join(dtype.value for dtype in known)}.")


def find_pair(text: str, find: Callable[[str], AnyDtype]) -> tuple[AnyDtype, AnyDtype]:
    """The formats of K and V in ``X``, ``k=X,v=Y`` or ``X,Y``, each looked up by ``find``.  Raises ``ConfigError``."""
    try:
        k, v = split_pair(text)
    except ValueError as error:
        raise ConfigError(f"--kv-cache-dtype {text!r}: {error}.") from error
    return find(k), find(v)


def find_any_dtype(name: str) -> AnyDtype:
    """A format of another engine or, where none has that name, of ours: for devices that run no engine yet."""
    try:
        return find_dtype(name)
    except ConfigError as unknown:
        try:
            return find_dtype(name, is_own=True)
        except ConfigError:
            raise unknown from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec(BlockArithmetic):
    """One group of layers that store alike, on one device: ``num_layers`` times ``num_kv_heads`` pairs.

    ``block_size`` is any number of tokens, as other engines have it; ``v_dim`` 0 stores K alone.
    """

    block_size: int
    num_layers: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    k_dtype: AnyDtype
    v_dtype: AnyDtype
    retention: Retention = FULL
    is_latent: bool = False

    @property
    def num_pairs(self) -> int:
        return self.num_layers * self.num_kv_heads

    @property
    def tile_tensors(self) -> tuple[TensorSpec, ...]:
        k_tile = _tile(self.k_dtype, K_TILES, self.k_dim, self.block_size)
        return k_tile + _tile(self.v_dtype, V_TILES, self.v_dim, self.block_size) if self.v_dim else k_tile

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer: what vLLM calls a page."""
        return self.block_bytes // self.num_layers


def _tile(dtype: AnyDtype, ours: Mapping[KVDtype, TileRule], dim: int, block_size: int) -> tuple[TensorSpec, ...]:
    if isinstance(dtype, KVDtype):
        try:
            return ours[dtype](dim, block_size)
        except ValueError as error:
            raise ConfigError(f"KV format {dtype.value} does not take rows of {dim} elements: {error}.") from error
    row_bytes = dim
    if dtype in _Q_BLOCK_BYTES:
        if dim % _Q_BLOCK:
            raise ConfigError(f"KV format {dtype.value} needs rows of a multiple of {_Q_BLOCK} elements, not {dim}.")
        row_bytes = dim // _Q_BLOCK * _Q_BLOCK_BYTES[dtype]
    return (TensorSpec(dtype.value, "uint8", (block_size, row_bytes)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFormat:
    """The KV formats and block size an engine is told, and over how many devices each layer is split.

    ``retention`` is for layers without a window of their own; only our engine has another than FULL."""

    k_dtype: AnyDtype = KVDtype.BF16
    v_dtype: AnyDtype = KVDtype.BF16
    block_size: int = 16
    tensor_parallel: int = 1
    retention: Retention = FULL

    def rule(self, window: int | None) -> Retention:
        """The retention of a layer with a window of its own, or without."""
        return self.retention.rounded(self.block_size) if window is None else sliding(window)


def heads_per_device(num_kv_heads: int, tensor_parallel: int) -> int:
    """With more devices than KV heads every device still holds one: heads are replicated.

    Raises ``ConfigError`` when neither divides the other."""
    if num_kv_heads % tensor_parallel and tensor_parallel % num_kv_heads:
        raise ConfigError(
            f"{num_kv_heads} KV heads cannot be split over {tensor_parallel} devices: neither divides the other."
        )
    return max(num_kv_heads // tensor_parallel, 1)


def kv_groups(shape: ModelShape, form: StoreFormat) -> tuple[StoreSpec, ...]:
    """The stores of one device, one group for each kind of cache, in the order of first appearance."""
    counts: dict[LayerCache, int] = {}
    for cache in shape.held_caches():
        counts[cache] = counts.get(cache, 0) + 1
    return tuple(_spec(cache, count, form) for cache, count in counts.items())


def _spec(cache: LayerCache, num_layers: int, form: StoreFormat) -> StoreSpec:
    is_whole = cache.is_latent
    return StoreSpec(
        block_size=form.block_size,
        num_layers=num_layers,
        num_kv_heads=cache.num_kv_heads if is_whole else heads_per_device(cache.num_kv_heads, form.tensor_parallel),
        k_dim=cache.k_dim,
        v_dim=cache.v_dim,
        k_dtype=StoreDtype.RAW if cache.is_raw else form.k_dtype,
        v_dtype=form.v_dtype,
        retention=form.rule(cache.window),
        is_latent=cache.is_latent,
    )


def bytes_per_token(groups: Sequence[BlockArithmetic]) -> float:
    """What one more token costs one device while no window has filled."""
    return sum(spec.bytes_per_token for spec in groups)


def held_bytes(groups: Sequence[BlockArithmetic], num_tokens: int, chunk_tokens: int) -> int:
    """The most that a sequence of ``num_tokens`` holds on one device, in whole blocks; windows as they are trimmed."""
    return sum(spec.pool_bytes(spec.max_blocks(num_tokens, chunk_tokens)) for spec in groups)


def read_bytes(shape: ModelShape, form: StoreFormat, context: int) -> float:
    """KV bytes one device reads for one new token behind ``context`` others: layers that share a cache read it too."""
    attended: dict[LayerCache, int] = {}
    for layer in shape.layers:
        for cache in layer.caches:
            attended[cache] = attended.get(cache, 0) + 1
    num_bytes = 0.0
    for cache, count in attended.items():
        spec = _spec(cache, count, form)
        num_bytes += spec.bytes_per_token * spec.retention.num_visible(context)
    return num_bytes + 2 * shape.state_bytes / form.tensor_parallel
