"""Finds the model and the device that ``kvasir simulate`` is asked for, as ``kvasir plan`` finds them."""

from collections.abc import Callable
from dataclasses import dataclass

from kvasir.cli.plan_request import hub_file
from kvasir.cli.simulate_options import Given
from kvasir.core.errors import ConfigError
from kvasir.hardware.cards import find_card
from kvasir.kv.retention import Retention
from kvasir.planner.engines import EngineName
from kvasir.planner.instance import plan_instance
from kvasir.planner.kv_groups import StoreFormat, find_any_dtype, find_pair
from kvasir.planner.lengths import parse_lengths
from kvasir.planner.request import EngineSettings, Load, PlanRequest, weight_format_of
from kvasir.planner.sources import find_model
from kvasir.planner.speed import constants_for, speed_note
from kvasir.planner.weight_formats import find_weight_format
from kvasir.simulator.deployment import device_cost
from kvasir.simulator.step_cost import RooflineStepCost

_THIS = ("this", "this machine", "local")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``kv_bytes`` reckons what the planner leaves for KV on each device; asked for only where it is not told."""

    cost: RooflineStepCost
    kv_bytes: Callable[[], int]
    price_per_hour: float | None
    description: str
    notes: tuple[str, ...]


def resolve_device(given: Given, block_size: int, retention: Retention) -> Device:
    """``retention`` is for layers without a window of their own.  Raises ``ConfigError`` or ``ModelError``."""
    if given["model"] is None:
        raise ConfigError("--hardware needs a --model to run on it.")
    shape = find_model(given["model"], hub_file)
    if given["hardware"].lower() in _THIS:
        raise ConfigError("What a step costs on this machine is measured: run `kvasir simulate --calibrate` first.")
    card = find_card(given["hardware"])
    weights = weight_format_of(shape) if given["weight_dtype"] is None else find_weight_format(given["weight_dtype"])
    k, v = find_pair(given["kv_cache_dtype"] or "bf16", find_any_dtype)
    tp = given["tp"] or 1
    form = StoreFormat(
        k_dtype=k,
        v_dtype=v,
        block_size=block_size,
        tensor_parallel=tp,
        retention=retention,
    )
    if retention.window and all(layer.caches and layer.caches[0].window for layer in shape.layers):
        raise ConfigError(
            f"--kv-retention {retention} is for layers with full attention, and {shape.name} has none; leave it out."
        )
    request = PlanRequest(
        shape=shape,
        weights=weights,
        k_dtype=form.k_dtype,
        v_dtype=form.v_dtype,
        load=Load(users=1, prompts=parse_lengths("1000"), outputs=parse_lengths("100")),
        settings=EngineSettings(
            engine=EngineName.VLLM,
            max_model_len=given["max_model_len"] or shape.max_context,
            tensor_parallel=tp,
            utilization=given["memory_utilization"],
            max_num_seqs=given["max_num_seqs"],
            max_num_batched_tokens=given["max_num_batched_tokens"],
        ),
    )
    price = card.price_per_hour_usd if given["price"] is None else given["price"]
    note = speed_note(shape, card)
    return Device(
        cost=device_cost(shape, weights, form, card, constants_for(card)),
        kv_bytes=lambda: plan_instance(request, card, tp).budget.kv_expected,
        price_per_hour=None if price is None else price * tp,
        description=f"{shape.name} ({weights.name}) on {tp} x {card.name}",
        notes=shape.notes if note is None else (*shape.notes, note),
    )
