"""How fast: seconds of a step and of a token from bytes and FLOPs of the model over the device's roofline."""

from dataclasses import dataclass, replace

from kvasir.hardware.card import DeviceCard, DeviceKind
from kvasir.hardware.roofline import IDEAL, Roofline, StepConstants, StepWork
from kvasir.kv.layout import KVLayout
from kvasir.models.cost import ModelCost, RowCost
from kvasir.planner.kv_groups import StoreFormat, read_bytes
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.weight_formats import WeightFormat, read_bytes_per_step

GPU_SERVER = StepConstants(
    bandwidth_efficiency=0.90, flops_efficiency=0.54, step_overhead_s=4.1e-3, link_overhead_s=20e-6
)
"""Fitted on vLLM's measured rows (dense models, H100, H200, B200): bench/tpot_rows.py makes them again."""

CPU_ASSUMED = StepConstants(bandwidth_efficiency=0.7, flops_efficiency=0.5, step_overhead_s=3e-3)
"""Assumed, not fitted; ``kvasir simulate --calibrate`` fits a machine."""


def constants_for(card: DeviceCard) -> StepConstants:
    return CPU_ASSUMED if card.kind is DeviceKind.CPU else GPU_SERVER


def speed_note(shape: ModelShape, card: DeviceCard) -> str | None:
    """What to know of expected times where they were not fitted: other devices, mixtures of experts."""
    if card.kind is DeviceKind.CPU:
        return "Expected times on a CPU rest on assumed constants; floors are from measured or listed rates."
    if card.kind is not DeviceKind.DATA_CENTRE:
        return f"Expected times were fitted on data-centre GPUs; on {card.name} they are an extrapolation."
    if shape.num_active_experts:
        return "Expected times were fitted on dense models; for mixtures of experts they are 20 to 50 % off."
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """What a step of our engine costs, by its own arithmetic."""

    cost: ModelCost
    layout: KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedModel:
    """One instance: ``roofline.num_devices`` devices that share every layer.

    ``own``: our engine's weights and layout, which then say what is read instead of ``weights`` and ``form``."""

    shape: ModelShape
    weights: WeightFormat
    form: StoreFormat
    roofline: Roofline
    own: OwnStep | None = None

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        weights: WeightFormat,
        form: StoreFormat,
        card: DeviceCard,
        constants: StepConstants,
        own: OwnStep | None = None,
    ) -> "SpeedModel":
        roofline = Roofline(
            card=card,
            flops_per_s=card.flops(weights.compute_bits),
            constants=constants,
            num_devices=form.tensor_parallel,
        )
        return cls(shape=shape, weights=weights, form=form, roofline=roofline, own=own)

    @property
    def floor(self) -> "SpeedModel":
        """The same without any loss: what no engine can beat on this device."""
        return replace(self, roofline=replace(self.roofline, constants=IDEAL))

    def decode_work(self, batch: int, context: int) -> StepWork:
        """One token for each of ``batch`` sequences that hold ``context`` tokens."""
        devices = self.roofline.num_devices
        if self.own is not None:
            rows = (RowCost(num_new=1, num_computed=context),) * batch
            return StepWork(
                num_bytes=self.own.cost.step_bytes(self.own.layout, rows, batch),
                num_flops=self.own.cost.step_flops(self.own.layout, rows, batch),
                num_layers=self.shape.num_layers,
                num_sequences=batch,
                num_tokens=batch,
            )
        weights = read_bytes_per_step(self.shape, self.weights, batch) / devices
        flops = 2 * self.shape.num_active_parameters + self.shape.attention_flops(context)
        return StepWork(
            num_bytes=weights + batch * read_bytes(self.shape, self.form, context),
            num_flops=batch * flops / devices,
            num_layers=self.shape.num_layers,
            num_sequences=batch,
            num_tokens=batch,
        )

    def decode_step_s(self, batch: int, context: int) -> float:
        return self.roofline.step_s(self.decode_work(batch, context))

    def prefill_s(self, num_tokens: int) -> float:
        """Compute of a prompt that finds nothing in the cache; overheads ride on the steps it is part of."""
        linear = 2 * self.shape.num_active_parameters * num_tokens
        if self.own is not None:
            attention = self.own.cost.attention_flops(self.own.layout, RowCost(num_new=num_tokens, num_computed=0))
        else:
            attention = num_tokens * self.shape.attention_flops(num_tokens // 2)
        return self.roofline.compute_s((linear + attention) / self.roofline.num_devices)

    def unloaded_ttft_s(self, num_tokens: int) -> float:
        """To the first token when nobody else is there.  Under load it is queueing that decides: simulate that."""
        return self.prefill_s(num_tokens) + self.roofline.constants.step_overhead_s

    def tpot_s(self, batch: int, prompt: float, output: float, hit_rate: float = 0.0) -> float:
        """Mean time per output token in a closed loop of ``batch``: a decode step, and the share of the prompts that
        are computed meanwhile (each output of ``output`` tokens brings one prompt, ``hit_rate`` of it cached)."""
        step_s = self.decode_step_s(batch, round(prompt + output / 2))
        return step_s + batch * self.prefill_s(round(prompt * (1 - hit_rate))) / output

    def crossover_context(self, batch: int) -> int | None:
        """From which context on the KV cache is more of a step's traffic than the weights; None if it never is."""
        weights = self.decode_work(batch, 0).num_bytes
        if self.decode_work(batch, self.shape.max_context).num_bytes < 2 * weights:
            return None
        low, high = 0, self.shape.max_context
        while high - low > 1:
            middle = (low + high) // 2
            if self.decode_work(batch, middle).num_bytes < 2 * weights:
                low = middle
            else:
                high = middle
        return high
