"""Seconds of a step on a device: the larger of moving the bytes and doing the FLOPs, plus fitted overheads."""

from dataclasses import dataclass

from kvasir.hardware.card import DeviceCard


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """How far from the data sheet real steps are.

    Efficiencies are shares of the card's rates.  ``step_overhead_s`` is spent once a step (launches, scheduling,
    sampling), ``link_overhead_s`` once a layer when several devices share a layer, ``sequence_overhead_s`` and
    ``token_overhead_s`` for every sequence and every token of the step (0 where that was not told apart).
    """

    bandwidth_efficiency: float
    flops_efficiency: float
    step_overhead_s: float
    link_overhead_s: float = 0.0
    sequence_overhead_s: float = 0.0
    token_overhead_s: float = 0.0


IDEAL = StepConstants(bandwidth_efficiency=1.0, flops_efficiency=1.0, step_overhead_s=0.0)
"""The floor: nothing can be faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step asks of each device: its share of the bytes and of the FLOPs, and what is counted per step."""

    num_bytes: float
    num_flops: float
    num_layers: int = 0
    num_sequences: int = 0
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """``num_devices`` of ``card`` share every layer; ``flops_per_s`` is the rate of one device for these weights."""

    card: DeviceCard
    flops_per_s: float
    constants: StepConstants = IDEAL
    num_devices: int = 1

    def memory_s(self, num_bytes: float) -> float:
        return num_bytes / (self.card.bandwidth_bytes_per_s * self.constants.bandwidth_efficiency)

    def compute_s(self, num_flops: float) -> float:
        return num_flops / (self.flops_per_s * self.constants.flops_efficiency)

    def step_s(self, work: StepWork) -> float:
        constants = self.constants
        link_s = constants.link_overhead_s * work.num_layers if self.num_devices > 1 else 0.0
        return (
            max(self.memory_s(work.num_bytes), self.compute_s(work.num_flops))
            + constants.step_overhead_s
            + link_s
            + constants.sequence_overhead_s * work.num_sequences
            + constants.token_overhead_s * work.num_tokens
        )
