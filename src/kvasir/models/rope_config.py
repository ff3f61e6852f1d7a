"""How a model turns positions into rotations: RoPE's kind and its numbers, read from either form configs use."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvasir.core.errors import ModelError
from kvasir.models.foreign import ForeignConfig

DEFAULT_THETA = 10_000.0
"""What a Hugging Face config without rope_theta means."""


class RopeKind(Enum):
    DEFAULT = "default"
    LINEAR = "linear"
    """Positions divided by ``factor``."""
    LLAMA3 = "llama3"
    """Low frequencies divided by ``factor``, high ones left, a smooth band between."""
    YARN = "yarn"
    """A ramp over frequencies between interpolation and extrapolation (Peng et al., arXiv:2309.00071)."""
    DYNAMIC = "dynamic"
    """NTK-aware: the base grows with the context (see ``rope.inverse_frequencies`` for how we fix it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """``original_max_position`` is the trained context, in tokens.  ``attention_factor`` multiplies cos and sin.

    ``low_freq_factor``, ``high_freq_factor``: LLAMA3 only.  ``beta_fast``, ``beta_slow``, ``truncate``: YARN only.
    """

    kind: RopeKind = RopeKind.DEFAULT
    theta: float = DEFAULT_THETA
    original_max_position: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def max_context(self, max_position_embeddings: int) -> int:
        """The longest context, in tokens, that the scaling was made for."""
        if self.kind is RopeKind.YARN:
            return max(max_position_embeddings, round(self.factor * self.original_max_position))
        if self.kind is RopeKind.DYNAMIC:
            return round(self.factor * self.original_max_position)
        return max_position_embeddings


def read_rope(config: ForeignConfig, max_position_embeddings: int) -> RopeConfig:
    """RoPE of a config: ``rope_parameters`` (transformers 5), or ``rope_theta`` with ``rope_scaling`` (before).

    Raises ``ModelError`` for an unknown type, for a rotary part smaller than the head, and for any entry that the
    type does not use: an entry we would ignore might change the model.
    """
    scaling, parameters = config.part("rope_scaling"), config.part("rope_parameters")
    if scaling is not None and parameters is not None and scaling.values != parameters.values:
        raise ModelError(f"{config.label} has both rope_scaling and rope_parameters, and they differ.")
    entries = parameters or scaling or ForeignConfig({}, f"rope_parameters of {config.label}")
    for part in (config, entries):
        fraction = part.number("partial_rotary_factor", 1.0)
        if fraction != 1.0:
            raise ModelError(f"{part.label} has partial_rotary_factor = {fraction}; only 1.0 is served.")
    kind = _read_kind(entries)
    _refuse_unused(entries, kind)
    theta = entries.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    return _READERS[kind](_Source(config, entries, theta, max_position_embeddings))


@dataclass(frozen=True, slots=True)
class _Source:
    config: ForeignConfig
    entries: ForeignConfig
    theta: float
    max_position_embeddings: int

    def factor(self) -> float:
        factor = self.entries.number("factor")
        if factor < 1.0:
            raise ModelError(f"{self.entries.label} has factor = {factor}; it must be at least 1.")
        return factor

    def original_max_position(self) -> int:
        """Some configs say it beside the RoPE entries; that one wins, as it does in transformers."""
        inner = self.entries.count("original_max_position_embeddings", self.max_position_embeddings)
        return self.config.count("original_max_position_embeddings", inner)


def _read_kind(entries: ForeignConfig) -> RopeKind:
    name = entries.get("rope_type") or entries.get("type")
    if name is None:
        if set(_given(entries)) <= _SHARED_ENTRIES:
            return RopeKind.DEFAULT
        raise ModelError(f"{entries.label} names no rope_type but has {', '.join(_given(entries))}.")
    for kind in RopeKind:
        if kind.value == name:
            return kind
    raise ModelError(f"The RoPE type {name!r} is not served; served are {', '.join(kind.value for kind in RopeKind)}.")


def _given(entries: ForeignConfig) -> dict[str, Any]:
    return {name: value for name, value in entries.values.items() if value is not None}


def _refuse_unused(entries: ForeignConfig, kind: RopeKind) -> None:
    for name, value in _given(entries).items():
        if name not in _SHARED_ENTRIES | _OWN_ENTRIES[kind]:
            raise ModelError(
                f"{entries.label} has {name} = {value!r}, which RoPE of type {kind.value} does not use in any way "
                "that is served."
            )


def _read_default(source: _Source) -> RopeConfig:
    return RopeConfig(theta=source.theta, original_max_position=source.max_position_embeddings)


def _read_linear(source: _Source) -> RopeConfig:
    return RopeConfig(
        kind=RopeKind.LINEAR,
        theta=source.theta,
        original_max_position=source.max_position_embeddings,
        factor=source.factor(),
    )


def _read_llama3(source: _Source) -> RopeConfig:
    low, high = source.entries.number("low_freq_factor"), source.entries.number("high_freq_factor")
    if high <= low:
        raise ModelError(
            f"{source.entries.label} has high_freq_factor = {high}, which must be above low_freq_factor = {low}."
        )
    return RopeConfig(
        kind=RopeKind.LLAMA3,
        theta=source.theta,
        original_max_position=source.original_max_position(),
        factor=source.factor(),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _read_dynamic(source: _Source) -> RopeConfig:
    stated = source.entries.count("original_max_position_embeddings", source.max_position_embeddings)
    if stated != source.max_position_embeddings:
        raise ModelError(
            f"{source.entries.label} has original_max_position_embeddings = {stated}; with dynamic RoPE it must equal "
            f"max_position_embeddings, which is {source.max_position_embeddings}."
        )
    return RopeConfig(kind=RopeKind.DYNAMIC, theta=source.theta, original_max_position=stated, factor=source.factor())


def _read_yarn(source: _Source) -> RopeConfig:
    entries = source.entries
    original = source.original_max_position()
    if "factor" in entries.values and entries.get("factor") is None:
        factor = source.max_position_embeddings / original
    else:
        factor = source.factor()
    return RopeConfig(
        kind=RopeKind.YARN,
        theta=source.theta,
        original_max_position=original,
        factor=factor,
        beta_fast=entries.number("beta_fast", 32.0),
        beta_slow=entries.number("beta_slow", 1.0),
        truncate=entries.flag("truncate", True),
        attention_factor=_yarn_attention_factor(entries, factor),
    )


def _yarn_attention_factor(entries: ForeignConfig, factor: float) -> float:
    """The paper's 0.1 ln(s) + 1, unless the config gives the number or DeepSeek's pair of mscales."""
    if entries.get("attention_factor") is not None:
        return entries.number("attention_factor")

    def magnitude(mscale: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0

    if entries.get("mscale") and entries.get("mscale_all_dim"):
        return magnitude(entries.number("mscale")) / magnitude(entries.number("mscale_all_dim"))
    return magnitude(1.0)


_READERS: dict[RopeKind, Callable[[_Source], RopeConfig]] = {
    RopeKind.DEFAULT: _read_default,
    RopeKind.LINEAR: _read_linear,
    RopeKind.LLAMA3: _read_llama3,
    RopeKind.YARN: _read_yarn,
    RopeKind.DYNAMIC: _read_dynamic,
}
_SHARED_ENTRIES = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor", "finetuned"})
"""``finetuned`` is a remark some YaRN models carry; it changes nothing."""
_ORIGINAL = "original_max_position_embeddings"
_OWN_ENTRIES: dict[RopeKind, frozenset[str]] = {
    RopeKind.DEFAULT: frozenset(),
    RopeKind.LINEAR: frozenset({"factor", _ORIGINAL}),
    RopeKind.LLAMA3: frozenset({"factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"}),
    RopeKind.DYNAMIC: frozenset({"factor", _ORIGINAL}),
    RopeKind.YARN: frozenset(
        {"factor", _ORIGINAL, "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"}
    ),
}
