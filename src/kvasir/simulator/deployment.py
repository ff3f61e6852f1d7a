"""From a model and a device one does not have to the two things a simulation needs: step costs and blocks."""

from kvasir.core.errors import ConfigError
from kvasir.hardware.card import DeviceCard
from kvasir.hardware.roofline import Roofline, StepConstants
from kvasir.kv.retention import Retention
from kvasir.kv.split import GroupDemand, split_pool
from kvasir.planner.kv_groups import StoreFormat, kv_groups
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.weight_formats import WeightFormat
from kvasir.scheduling.config import SchedulerConfig
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


def pool_blocks(
    cost: RooflineStepCost, kv_bytes: int, max_model_len: int, scheduler: SchedulerConfig
) -> tuple[int, ...]:
    """Blocks of each rule's group that ``kv_bytes`` on one device make, split as our engine splits them.  Raises
    ``ConfigError`` when not one sequence of ``max_model_len`` fits."""
    chunk_tokens, block_size = scheduler.max_num_batched_tokens, cost.form.block_size
    demands = [GroupDemand(_block_bytes(cost, rule), block_size, rule) for rule in cost.retentions]
    one = sum(
        demand.block_bytes * demand.retention.max_blocks(max_model_len, chunk_tokens, block_size) for demand in demands
    )
    if one == 0:
        raise ConfigError(f"{cost.shape.name} keeps no KV for its tokens; there is nothing to simulate in blocks.")
    if one > kv_bytes:
        raise ConfigError(
            f"{kv_bytes / _GIB:.2f} GiB of KV hold no sequence of {max_model_len:,} tokens, which takes "
            f"{one / _GIB:.2f} GiB on each device; lower --max-model-len, or take more memory."
        )
    return split_pool(
        demands,
        kv_bytes,
        max_model_len=max_model_len,
        chunk_tokens=chunk_tokens,
        max_num_seqs=scheduler.max_num_seqs,
    )


def _block_bytes(cost: RooflineStepCost, rule: Retention) -> int:
    return sum(group.block_bytes for group in kv_groups(cost.shape, cost.form) if group.retention == rule)
