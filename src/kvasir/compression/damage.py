"""What an option costs a head: how far its output moves, as a share of the residual stream, on a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from kvasir.compression.observer import BLOCK_SIZE, LayerView, ObservedModel
from kvasir.formats.constants import KVConstants
from kvasir.formats.registry import FORMATS
from kvasir.formats.store import KVStore
from kvasir.kernels.interface import HeadConstants
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.retention import FULL, Retention, sliding

_MOST_QUERIES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOption:
    """One way to keep a head.  ``retention`` is fitted to whole blocks already."""

    retention: Retention
    k_dtype: KVDtype
    v_dtype: KVDtype

    @property
    def label(self) -> str:
        return f"{self.retention} k={self.k_dtype.value} v={self.v_dtype.value}"


class DamageMeter:
    """Its ``see`` takes every layer of one text of ``num_tokens`` (see ``observer``); then ``damage[option]`` [L, Hkv]
    is the mean over queries of |change of what the head adds|^2 / |residual stream|^2.

    A KV head's query heads count together.  Queries are spread over the second half of the text, where windows have
    filled.  Shares of different heads and layers can be compared and, where small, added.
    """

    def __init__(self, model: ObservedModel, options: Sequence[HeadOption], num_tokens: int) -> None:
        shape = (model.config.num_layers, model.config.num_kv_heads)
        self.damage = {option: torch.zeros(shape) for option in options}
        self._model = model
        self._queries = _spread_queries(num_tokens)

    def see(self, view: LayerView, constants: HeadConstants) -> None:
        """``constants`` are those of all of the layer's heads, which the formats encode with."""
        window = self._model.config.sliding_windows[view.layer]
        facts = LayerFacts(
            output_weight=self._model.output_weight(view.layer),
            own=FULL if window is None else sliding(window),
            constants=constants,
        )
        for option, shares in layer_damage(view, facts, tuple(self.damage), self._queries).items():
            self.damage[option][view.layer] = shares


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """``output_weight`` [Hq, D, hidden]; ``own``: what the model lets the layer see; ``constants`` of all heads."""

    output_weight: Tensor
    own: Retention = FULL
    constants: HeadConstants = field(default_factory=HeadConstants)


def layer_damage(
    view: LayerView, facts: LayerFacts, options: Sequence[HeadOption], queries: Tensor
) -> Mapping[HeadOption, Tensor]:
    """``queries`` int64 [n]: positions.  Returns shares [Hkv] for each option."""
    num_kv_heads = view.k.shape[1]
    weight = facts.output_weight.unflatten(0, (num_kv_heads, -1)).flatten(1, 2)
    causal = (torch.arange(len(view.k)) <= queries[:, None]) & visible(facts.own, queries, len(view.k))
    exact = _outputs(view.q[queries], view.k, view.v, causal)
    found = {}
    for option in options:
        k, v = _round_trip(view, option, facts.constants)
        outputs = _outputs(view.q[queries], k, v, causal & visible(option.retention, queries, len(view.k)))
        moved = (outputs - exact) @ weight
        found[option] = (moved.square().sum(dim=-1) / view.energy[queries]).mean(dim=-1)
    return found


def visible(retention: Retention, queries: Tensor, num_tokens: int) -> Tensor:
    """bool [n, T]: what ``retention`` leaves of the tokens before each query."""
    positions = torch.arange(num_tokens)
    first = torch.tensor([retention.first_visible(int(query)) for query in queries])
    return (positions >= first[:, None]) | (positions < retention.sinks)


def _outputs(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attention of ``q`` [n, Hq, D] over all of k and v where ``seen`` [n, T]: [Hkv, n, G * D]."""
    num_kv_heads, head_dim = k.shape[1:]
    grouped = q.unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)
    scores = grouped @ k.permute(1, 2, 0)[:, None] * head_dim**-0.5
    weights = scores.masked_fill_(~seen, float("-inf")).softmax(dim=-1)
    return (weights @ v.transpose(0, 1)[:, None]).transpose(1, 2).flatten(2)


def _round_trip(view: LayerView, option: HeadOption, constants: HeadConstants) -> tuple[Tensor, Tensor]:
    """k and v, each [T, Hkv, D], as the option's cache gives them back, through the formats that serve."""
    num_tokens, num_kv_heads, head_dim = view.k.shape
    geometry = KVGeometry(num_layers=1, num_kv_heads=num_kv_heads, head_dim=head_dim, sliding_windows=(None,))
    layout = KVLayout.from_geometry(geometry, block_size=BLOCK_SIZE, k_dtype=option.k_dtype, v_dtype=option.v_dtype)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    of_model = {name: None if tensor is None else tensor[None] for name, tensor in _named(constants)}
    ((_, kv),) = KVStore(layout, (num_blocks,), KVConstants(**of_model)).layers[0]
    k_format, v_format = FORMATS[option.k_dtype], FORMATS[option.v_dtype]
    slots, blocks = torch.arange(num_tokens), torch.arange(num_blocks)
    k_format.encode_k(kv, slots, view.k.contiguous())
    v_format.encode_v(kv, slots, view.v.contiguous())
    k, v = k_format.decode_k(kv, blocks), v_format.decode_v(kv, blocks)
    return k[:, :num_tokens].transpose(0, 1), v[:, :num_tokens].transpose(0, 1)


def _named(constants: HeadConstants) -> list[tuple[str, Tensor | None]]:
    return [(entry.name, getattr(constants, entry.name)) for entry in fields(constants)]


def _spread_queries(num_tokens: int) -> Tensor:
    first = num_tokens // 2
    return torch.arange(first, num_tokens, max(1, (num_tokens - first) // _MOST_QUERIES))
