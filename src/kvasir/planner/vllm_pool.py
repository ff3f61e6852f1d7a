"""vLLM's pool, version by version: how many blocks, what the start-up line says, what a sequence takes."""

from dataclasses import dataclass, replace
from enum import Enum

from kvasir.core.errors import ConfigError
from kvasir.planner.kv_groups import StoreFormat, StoreSpec, kv_groups
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.pool import Pool, Resource

_LARGE_SPREAD = 1.5
"""Layer counts closer than this are padded to the larger one instead of split by the smaller."""


class VllmRule(Enum):
    """Which arithmetic a version has."""

    V0 = "v0"
    """Up to 0.8: every layer is given the full context; windows save nothing."""
    V1 = "v1"
    """0.9 to 0.20: layers of different retention in groups of equal size over one pool of equal pages."""
    V1_CONCURRENCY = "v1-concurrency"
    """From 0.21: the same pool, but tokens are printed as concurrency times the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """``in_flight_tokens`` is what a step may add before old blocks go: ``max_num_batched_tokens``, twice that when
    steps are scheduled ahead of time (the default from 0.21)."""

    max_model_len: int
    max_num_batched_tokens: int
    rule: VllmRule
    draft_layers: int = 0

    @property
    def in_flight_tokens(self) -> int:
        return self.max_num_batched_tokens * (2 if self.rule is VllmRule.V1_CONCURRENCY else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Layers that take pages alike: ``num_layers`` of them, pages of ``page_bytes`` for ``block_size`` tokens.

    ``window`` 0 is full attention; ``is_state`` layers take one page a sequence, however long."""

    num_layers: int
    page_bytes: int
    block_size: int
    window: int = 0
    is_state: bool = False

    def blocks(self, num_tokens: int, in_flight_tokens: int) -> int:
        if self.is_state:
            return 1
        if not self.window:
            return -(-num_tokens // self.block_size)
        # One block more: the window need not begin at a block's start.
        return -(-min(self.window - 1 + in_flight_tokens, num_tokens) // self.block_size) + 1


def vllm_pool(shape: ModelShape, form: StoreFormat, settings: VllmSettings, kv_bytes: int) -> Pool:
    """The pool that ``kv_bytes`` on each device make.  Raises ``ConfigError`` when not one block fits."""
    if settings.rule is VllmRule.V0:
        return _uniform_pool(shape, form, settings, kv_bytes)
    kinds = _unify(_kinds(shape, form, settings))
    if len(kinds) == 1 and _has_one_attention(shape):
        return _uniform_pool(shape, form, settings, kv_bytes)
    return _hybrid_pool(kinds, settings, kv_bytes)


def _has_one_attention(shape: ModelShape) -> bool:
    return not shape.windows and not shape.state_bytes


def _uniform_pool(shape: ModelShape, form: StoreFormat, settings: VllmSettings, kv_bytes: int) -> Pool:
    """All layers hold all tokens: one block is a block of every layer."""
    block_bytes = sum(spec.block_bytes for spec in _with_draft(kv_groups(shape, form), settings))
    num_blocks = kv_bytes // block_bytes
    _check(num_blocks, kv_bytes, block_bytes)
    size = form.block_size
    need = -(-settings.max_model_len // size)
    tokens = num_blocks * size
    concurrency = tokens / settings.max_model_len if settings.rule is VllmRule.V0 else num_blocks / need
    return Pool(
        num_bytes=num_blocks * block_bytes,
        block_size=size,
        resources=(Resource(name="blocks", capacity=num_blocks, cost=lambda n: -(-n // size)),),
        num_blocks=(num_blocks,),
        printed_tokens=_printed(settings, tokens, concurrency),
        printed_concurrency=concurrency,
    )


def _with_draft(groups: tuple[StoreSpec, ...], settings: VllmSettings) -> tuple[StoreSpec, ...]:
    """A speculative draft of the model's own head geometry adds layers to the first group."""
    return (replace(groups[0], num_layers=groups[0].num_layers + settings.draft_layers), *groups[1:])


def _printed(settings: VllmSettings, tokens: int, concurrency: float) -> int:
    return int(concurrency * settings.max_model_len) if settings.rule is VllmRule.V1_CONCURRENCY else tokens


def _kinds(shape: ModelShape, form: StoreFormat, settings: VllmSettings) -> list[_Kind]:
    groups = _with_draft(kv_groups(shape, form), settings) if shape.num_kv_layers else ()
    state_bytes = _state_page_bytes(shape, form)
    if state_bytes:
        # Blocks grow until a page of them holds a recurrent state.
        per_token = max(spec.page_bytes for spec in groups) // form.block_size if groups else 1
        size = form.block_size * -(-state_bytes // (form.block_size * per_token))
        groups = tuple(replace(spec, block_size=max(size, form.block_size)) for spec in groups)
    kinds = [
        _Kind(
            num_layers=spec.num_layers,
            page_bytes=spec.page_bytes,
            block_size=spec.block_size,
            window=spec.retention.window,
        )
        for spec in groups
    ]
    num_recurrent = sum(1 for layer in shape.layers if layer.state)
    if num_recurrent:
        page = max((kind.page_bytes for kind in kinds), default=state_bytes)
        size = kinds[0].block_size if kinds else settings.max_model_len
        kinds.append(_Kind(num_layers=num_recurrent, page_bytes=page, block_size=size, is_state=True))
    return kinds


def _state_page_bytes(shape: ModelShape, form: StoreFormat) -> int:
    """The state of one recurrent layer on one device."""
    largest = max((layer.state_bytes for layer in shape.layers), default=0)
    return -(-largest // form.tensor_parallel)


def _unify(kinds: list[_Kind]) -> list[_Kind]:
    """Pages of one size: smaller ones take more tokens a block until they are as large as the largest."""
    largest = max(kind.page_bytes for kind in kinds)
    unified = []
    for kind in kinds:
        factor, rest = divmod(largest, kind.page_bytes)
        if rest:
            raise ConfigError(
                f"vLLM needs KV pages of one size, but {largest} bytes are not a multiple of {kind.page_bytes}."
            )
        unified.append(replace(kind, page_bytes=largest, block_size=kind.block_size * factor))
    return unified


def _hybrid_pool(kinds: list[_Kind], settings: VllmSettings, kv_bytes: int) -> Pool:
    fewest, most = min(k.num_layers for k in kinds), max(k.num_layers for k in kinds)
    group_size = most if most < fewest * _LARGE_SPREAD else fewest
    num_groups = [-(-kind.num_layers // group_size) for kind in kinds]
    page_bytes = kinds[0].page_bytes
    num_blocks = kv_bytes // (page_bytes * group_size)
    _check(num_blocks, kv_bytes, page_bytes * group_size)

    def cost(num_tokens: int) -> int:
        in_flight = settings.in_flight_tokens
        return sum(count * kind.blocks(num_tokens, in_flight) for count, kind in zip(num_groups, kinds, strict=True))

    concurrency = num_blocks / cost(settings.max_model_len)
    smallest = min(kind.block_size for kind in kinds)
    return Pool(
        num_bytes=num_blocks * page_bytes * group_size,
        block_size=smallest,
        resources=(Resource(name="blocks", capacity=num_blocks, cost=cost),),
        num_blocks=(num_blocks,),
        printed_tokens=_printed(settings, num_blocks // sum(num_groups) * smallest, concurrency),
        printed_concurrency=concurrency,
    )


def _check(num_blocks: int, kv_bytes: int, block_bytes: int) -> None:
    if num_blocks < 1:
        raise ConfigError(f"{kv_bytes} bytes are left for KV, less than one block of {block_bytes} bytes.")


def swap_blocks(shape: ModelShape, form: StoreFormat, swap_bytes: int = 4 << 30) -> int:
    """Blocks of V0's CPU swap space, which its log prints too."""
    return swap_bytes // sum(spec.block_bytes for spec in kv_groups(shape, form))
