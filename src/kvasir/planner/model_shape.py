"""``ModelShape``: what planning needs to know of a model, any model: caches, states, parameters, layer by layer."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from kvasir.kv.format_spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """What one layer stores for each token.

    ``v_dim`` 0: K alone is stored (a latent that serves as both).  ``window`` in tokens, None for full attention.
    ``is_latent``: every device needs all of it, however many share the layer.  ``is_raw``: the elements are bytes,
    whatever format the KV cache has.
    """

    num_kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    is_latent: bool = False
    is_raw: bool = False

    @property
    def elements_per_token(self) -> int:
        return self.num_kv_heads * (self.k_dim + self.v_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """How many weights a layer has, by what quantisation does with them.

    ``attention`` and ``dense`` (feed-forward, shared experts, router) are matrices, ``expert`` is one routed expert, of
    which ``num_active_experts`` work on a token; ``vectors`` (norms, biases, convolutions) always keep 16 bits.
    """

    attention: int = 0
    dense: int = 0
    expert: int = 0
    num_experts: int = 0
    num_active_experts: int = 0
    vectors: int = 0

    @property
    def total(self) -> int:
        return self.attention + self.dense + self.expert * self.num_experts + self.vectors

    @property
    def active(self) -> int:
        return self.attention + self.dense + self.expert * self.num_active_experts + self.vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One layer.  ``caches`` are what it attends to; with ``shares_cache`` another layer holds them.

    ``state`` is what a recurrent layer keeps for a sequence, however long.  ``query_elements`` is the number of
    multiply-adds for each (query, visible key) pair, summed over the query heads: scores and weighted values.
    """

    caches: tuple[LayerCache, ...] = ()
    shares_cache: bool = False
    state: tuple[TensorSpec, ...] = ()
    query_elements: int = 0
    parameters: LayerParameters = LayerParameters()

    @property
    def held_caches(self) -> tuple[LayerCache, ...]:
        return () if self.shares_cache else self.caches

    @property
    def state_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One model.

    ``weight_bits`` names the format its files hold (a key of ``weight_formats``).  ``stored_weight_bytes`` is the exact
    size where the files were seen, else None and reckoned from the parameters.  ``notes`` are sentences on what was
    assumed while reading.  ``num_heads`` is the query heads that tensor parallelism has to divide.
    """

    name: str
    architecture: str
    source: str
    hidden_size: int
    vocab_size: int
    num_heads: int
    max_context: int
    layers: tuple[LayerShape, ...]
    embedding_parameters: int
    head_parameters: int
    """0 when the head is the embedding."""
    weight_format: str
    other_parameters: int = 0
    has_k_bias: bool = False
    stored_weight_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_parameters(self) -> int:
        outside = self.embedding_parameters + self.head_parameters + self.other_parameters
        return sum(layer.parameters.total for layer in self.layers) + outside

    @property
    def num_active_parameters(self) -> int:
        """Weights that one token is multiplied with: layers with the experts it is routed to, and the head."""
        head = self.head_parameters or self.embedding_parameters
        return sum(layer.parameters.active for layer in self.layers) + head

    @property
    def state_bytes(self) -> int:
        """What recurrent layers keep for one sequence."""
        return sum(layer.state_bytes for layer in self.layers)

    @property
    def num_kv_layers(self) -> int:
        return sum(1 for layer in self.layers if layer.held_caches)

    @property
    def min_kv_heads(self) -> int:
        """Fewest KV heads of any layer that is split between devices; 0 when none is."""
        return min((cache.num_kv_heads for cache in self.held_caches() if not cache.is_latent), default=0)

    @property
    def is_latent(self) -> bool:
        return any(cache.is_latent for cache in self.held_caches())

    @property
    def windows(self) -> tuple[int, ...]:
        """The distinct sliding windows."""
        return tuple(sorted({cache.window for cache in self.held_caches() if cache.window is not None}))

    @property
    def is_hybrid(self) -> bool:
        """Whether layers keep different things: full beside sliding attention, or beside a recurrent state."""
        kinds = {cache.window for cache in self.held_caches()}
        return len(kinds) > 1 or (bool(kinds) and self.state_bytes > 0)

    @property
    def num_active_experts(self) -> int:
        return max((layer.parameters.num_active_experts for layer in self.layers), default=0)

    def held_caches(self) -> Iterator[LayerCache]:
        for layer in self.layers:
            yield from layer.held_caches

    def attention_flops(self, context: int) -> int:
        """Of one new token that sees ``context`` tokens: 2 FLOPs for each multiply-add."""
        flops = 0
        for layer in self.layers:
            if layer.caches:
                window = layer.caches[0].window
                flops += 2 * layer.query_elements * min(context, window or context)
            else:
                flops += 2 * sum(prod(tensor.shape) for tensor in layer.state)
        return flops
