"""From a model and a device one does not have to the two things a simulation needs: step costs and blocks."""

from kvasir.core.errors import ConfigError
from kvasir.hardware.card import DeviceCard
from kvasir.hardware.roofline import Roofline, StepConstants
from kvasir.kv.retention import Retention
from kvasir.planner.kv_groups import StoreFormat, kv_groups
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.weight_formats import WeightFormat
from kvasir.simulator.step_cost import RooflineStepCost

_GIB = 1 << 30


def device_cost(
    shape: ModelShape, weights: WeightFormat, form: StoreFormat, card: DeviceCard, constants: StepConstants
) -> RooflineStepCost:
    """``form.tensor_parallel`` devices of ``card`` as one engine."""
    roofline = Roofline(
        card=card,
        flops_per_s=card.flops(weights.compute_bits),
        constants=constants,
        num_devices=form.tensor_parallel,
    )
    return RooflineStepCost(shape, weights, form, roofline)


def pool_blocks(cost: RooflineStepCost, kv_bytes: int, max_model_len: int, chunk_tokens: int) -> tuple[int, ...]:
    """Blocks of each rule's group that ``kv_bytes`` on one device make, split as our engine splits them: so that as
    many sequences of ``max_model_len`` fit as possible.  Raises ``ConfigError`` when not one fits."""
    sizes = [_block_bytes(cost, rule) for rule in cost.retentions]
    needs = [rule.max_blocks(max_model_len, chunk_tokens, cost.form.block_size) for rule in cost.retentions]
    one = sum(need * size for need, size in zip(needs, sizes, strict=True))
    if one == 0:
        raise ConfigError(f"{cost.shape.name} keeps no KV for its tokens; there is nothing to simulate in blocks.")
    if one > kv_bytes:
        raise ConfigError(
            f"{kv_bytes / _GIB:.2f} GiB of KV hold no sequence of {max_model_len:,} tokens, which takes "
            f"{one / _GIB:.2f} GiB on each device; lower --max-model-len, or take more memory."
        )
    return tuple(need * kv_bytes // one for need in needs)


def _block_bytes(cost: RooflineStepCost, rule: Retention) -> int:
    return sum(group.block_bytes for group in kv_groups(cost.shape, cost.form) if group.retention == rule)
