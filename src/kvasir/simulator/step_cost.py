"""Seconds of a step: constants fitted to a real engine, or a roofline of a device one does not have."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

from kvasir.core.errors import ConfigError
from kvasir.hardware.roofline import Roofline
from kvasir.kv.retention import FULL, Retention
from kvasir.planner.kv_groups import StoreFormat, kv_groups
from kvasir.planner.model_shape import LayerShape, ModelShape
from kvasir.planner.weight_formats import WeightFormat, read_bytes_per_step
from kvasir.simulator.step_load import StepLoad


class StepCost(Protocol):
    """What a simulated step takes."""

    @property
    def retentions(self) -> tuple[Retention, ...]:
        """The rules by which ``StepLoad.pairs`` and ``reads`` are counted."""
        ...

    def step_s(self, load: StepLoad) -> float: ...

    def decoder(self, num_sequences: int) -> Callable[[int], float]:
        """Seconds, by the number of keys they see together, of a step in which each of ``num_sequences`` computes one
        token, for models with one rule: exactly ``step_s`` of that load, with all but the keys worked out once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStepCost:
    """Linear in what a step holds, constants from a probe of a real engine (``kvasir simulate --calibrate``):

    seconds = per_step + per_token * tokens + per_sequence * rows
              + per_pair * (new token, visible key) pairs + per_read * keys read

    A prefill is ruled by its pairs (arithmetic), a decode, which reads every key for one query, by its reads (memory).
    """

    per_step_s: float
    per_token_s: float
    per_sequence_s: float
    per_pair_s: float
    per_read_s: float
    retention: Retention = FULL
    """The rule of all layers, by which pairs and reads are counted; what one of them costs is the same under any."""

    @property
    def retentions(self) -> tuple[Retention, ...]:
        return (self.retention,)

    def step_s(self, load: StepLoad) -> float:
        return (
            self.per_step_s
            + self.per_token_s * load.num_tokens
            + self.per_sequence_s * load.num_sequences
            + self.per_pair_s * load.pairs[0]
            + self.per_read_s * load.reads[0]
        )

    def decoder(self, num_sequences: int) -> Callable[[int], float]:
        fixed_s = self.per_step_s + self.per_token_s * num_sequences + self.per_sequence_s * num_sequences
        per_pair_s, per_read_s = self.per_pair_s, self.per_read_s
        return lambda num_keys: fixed_s + per_pair_s * num_keys + per_read_s * num_keys

    def to_json(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_s")}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Raises ``ConfigError`` when a constant is missing or is not a number of at least 0."""
        found = {}
        for field in fields(cls):
            if not field.name.endswith("_s"):
                continue
            value = values.get(field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ConfigError(f"The step costs have {field.name} = {value!r}; seconds of at least 0 are expected.")
            found[field.name] = float(value)
        return cls(**found)


class RooflineStepCost:
    """Bytes and FLOPs of the step over what the device can do, plus the roofline's fitted overheads.

    Tensor parallelism splits weights and heads over ``form.tensor_parallel`` devices; latents are read whole by each.
    """

    def __init__(self, shape: ModelShape, weights: WeightFormat, form: StoreFormat, roofline: Roofline) -> None:
        self.shape = shape
        self.weights = weights
        self.form = form
        self.roofline = roofline
        layers = [(form.rule(layer.caches[0].window), layer) for layer in shape.layers if layer.caches]
        self.retentions: tuple[Retention, ...] = tuple(dict.fromkeys(rule for rule, _ in layers)) or (FULL,)
        groups = kv_groups(shape, form)
        # Per rule: bytes of one key or new token on one device, and FLOPs of one (query, key) pair there.
        self._write_bytes = [sum(g.bytes_per_token for g in groups if g.retention == rule) for rule in self.retentions]
        self._read_bytes = [
            num_bytes * _num_readers(layers, rule)
            for rule, num_bytes in zip(self.retentions, self._write_bytes, strict=True)
        ]
        self._pair_flops = [
            sum(2.0 * layer.query_elements for of, layer in layers if of == rule) / form.tensor_parallel
            for rule in self.retentions
        ]
        head = shape.head_parameters or shape.embedding_parameters
        # The shape adds these up over its layers each time it is asked, which is too slow for every step.
        self._token_flops = 2.0 * (shape.num_active_parameters - head) / form.tensor_parallel
        self._sample_flops = 2.0 * head / form.tensor_parallel
        self._state_bytes = 2.0 * shape.state_bytes / form.tensor_parallel
        self._write = sum(self._write_bytes)
        constants = roofline.constants
        self._bytes_per_s = roofline.card.bandwidth_bytes_per_s * constants.bandwidth_efficiency
        self._flops_per_s = roofline.flops_per_s * constants.flops_efficiency
        self._overhead_s = constants.step_overhead_s
        if roofline.num_devices > 1:
            self._overhead_s += constants.link_overhead_s * shape.num_layers
        self._sequence_s, self._token_s = constants.sequence_overhead_s, constants.token_overhead_s
        self._weight_bytes: dict[int, float] = {}

    def step_s(self, load: StepLoad) -> float:
        num_bytes, num_flops = self._fixed(load.num_tokens, load.num_sequences, load.num_samples)
        for rule, pair_flops in enumerate(self._pair_flops):
            num_bytes += self._read_bytes[rule] * load.reads[rule]
            num_flops += pair_flops * load.pairs[rule]
        return self._seconds(num_bytes, num_flops, load.num_sequences, load.num_tokens)

    def decoder(self, num_sequences: int) -> Callable[[int], float]:
        fixed_bytes, fixed_flops = self._fixed(num_sequences, num_sequences, num_sequences)
        read_bytes, pair_flops = self._read_bytes[0], self._pair_flops[0]
        bytes_per_s, flops_per_s, overhead_s = self._bytes_per_s, self._flops_per_s, self._overhead_s
        sequences_s, tokens_s = self._sequence_s * num_sequences, self._token_s * num_sequences

        def decode_s(num_keys: int) -> float:
            memory_s = (fixed_bytes + read_bytes * num_keys) / bytes_per_s
            compute_s = (fixed_flops + pair_flops * num_keys) / flops_per_s
            return (memory_s if memory_s > compute_s else compute_s) + overhead_s + sequences_s + tokens_s

        return decode_s

    def _fixed(self, num_tokens: int, num_sequences: int, num_samples: int) -> tuple[float, float]:
        """Bytes and FLOPs that do not depend on how many keys are seen."""
        num_bytes = self._weights_read(num_tokens) + self._state_bytes * num_sequences + self._write * num_tokens
        return num_bytes, self._token_flops * num_tokens + self._sample_flops * num_samples

    def _seconds(self, num_bytes: float, num_flops: float, num_sequences: int, num_tokens: int) -> float:
        """``Roofline.step_s`` with what never changes worked out: this runs for every simulated step."""
        memory_s, compute_s = num_bytes / self._bytes_per_s, num_flops / self._flops_per_s
        return (
            (memory_s if memory_s > compute_s else compute_s)
            + self._overhead_s
            + self._sequence_s * num_sequences
            + self._token_s * num_tokens
        )

    def _weights_read(self, num_tokens: int) -> float:
        """One device's share.  Remembered: it takes a walk over all layers, and steps are alike."""
        found = self._weight_bytes.get(num_tokens)
        if found is None:
            num_bytes = read_bytes_per_step(self.shape, self.weights, num_tokens)
            found = self._weight_bytes[num_tokens] = num_bytes / self.form.tensor_parallel
        return found


def _num_readers(layers: list[tuple[Retention, LayerShape]], rule: Retention) -> float:
    """How many layers read each stored key: more than one where layers share a cache."""
    reading = [layer for of, layer in layers if of == rule]
    holding = [layer for layer in reading if layer.held_caches]
    return len(reading) / len(holding) if holding else 0.0
