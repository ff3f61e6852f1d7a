"""The cheapest devices that hold a load: every card, every count, as many replicas as it takes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.hardware.card import DeviceCard, DeviceKind
from kvasir.hardware.roofline import StepConstants
from kvasir.models.cost import ModelCost
from kvasir.planner.capacity import Capacity, capacity_of, lengths_of
from kvasir.planner.economics import Cost, Throughput, cost_of, largest_batch, throughput_of
from kvasir.planner.engines import EngineName
from kvasir.planner.instance import Instance, plan_instance
from kvasir.planner.request import PlanRequest
from kvasir.planner.speed import OwnStep, SpeedModel, constants_for

_COUNTS = (1, 2, 4, 8)
_RUNS_ON: dict[EngineName, frozenset[DeviceKind]] = {
    EngineName.VLLM: frozenset(
        {DeviceKind.DATA_CENTRE, DeviceKind.WORKSTATION, DeviceKind.CONSUMER, DeviceKind.ASCEND, DeviceKind.CPU}
    ),
    EngineName.SGLANG: frozenset(
        {DeviceKind.DATA_CENTRE, DeviceKind.WORKSTATION, DeviceKind.CONSUMER, DeviceKind.ASCEND}
    ),
    EngineName.LLAMA_CPP: frozenset(DeviceKind),
    EngineName.KVASIR: frozenset({DeviceKind.CPU}),
}
_UNIFIED_MEMORY_GPUS = frozenset({"GB10", "Jetson-Thor-128", "Jetson-Orin-64"})
"""Boards with a CUDA device that vLLM and SGLang run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSet:
    """``num_replicas`` instances hold the load.  ``per_hour_usd`` is of all of them, None where there is no price."""

    instance: Instance
    capacity: Capacity
    throughput: Throughput
    cost: Cost | None
    num_replicas: int
    per_hour_usd: float | None

    @property
    def num_devices(self) -> int:
        return self.num_replicas * self.instance.num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a card does not do, at its largest count."""

    card: DeviceCard
    reason: str


def runs_on(engine: EngineName, card: DeviceCard) -> bool:
    if card.kind is DeviceKind.EDGE and engine in (EngineName.VLLM, EngineName.SGLANG):
        return card.name in _UNIFIED_MEMORY_GPUS
    return card.kind in _RUNS_ON[engine]


SEARCH_TPOT_S = 0.1
"""What a search allows when nothing is said: ten tokens a second, faster than people read."""


def device_set(
    request: PlanRequest,
    card: DeviceCard,
    num_devices: int,
    constants: StepConstants | None = None,
    max_tpot_s: float | None = None,
) -> DeviceSet:
    """The load on ``num_devices`` of ``card`` an instance, in batches that keep to ``max_tpot_s`` a token (None: to
    what the load says).  Raises ``ConfigError`` when not one sequence fits."""
    instance = plan_instance(request, card, num_devices)
    sample = lengths_of(request)
    capacity = capacity_of(request, instance, sample)
    speed = speed_of(request, instance, constants)
    load = request.load
    most = capacity.planned
    slowest_s = load.max_tpot_s if load.max_tpot_s is not None else max_tpot_s
    if slowest_s is not None:
        most = largest_batch(speed, sample, load.hit_rate, slowest_s, most)
    if most < 1:
        held = f"{capacity.shared:.2f} sequences fit, {capacity.safety:g} of that is planned with"
        limit = "" if slowest_s is None else f", at most {slowest_s * 1000:g} ms a token"
        raise ConfigError(f"{num_devices} x {card.name} hold not one sequence of this load ({held}{limit}).")
    replicas = math.ceil(load.users / most)
    throughput = throughput_of(speed, sample, math.ceil(load.users / replicas), load.hit_rate)
    cost = cost_of(card, num_devices, speed, throughput, load.hit_rate)
    return DeviceSet(
        instance=instance,
        capacity=capacity,
        throughput=throughput,
        cost=cost,
        num_replicas=replicas,
        per_hour_usd=None if cost is None else cost.per_hour_usd * replicas,
    )


def speed_of(request: PlanRequest, instance: Instance, constants: StepConstants | None = None) -> SpeedModel:
    """``constants`` None: those of the kind of device."""
    own = None
    if instance.own is not None and request.own is not None:
        cost = ModelCost(config=request.own.config, weight_dtype=request.own.engine.weight_dtype)
        own = OwnStep(cost=cost, layout=instance.own.layout)
    card = instance.card
    return SpeedModel.of(request.shape, request.weights, instance.form, card, constants or constants_for(card), own)


def search_devices(
    request: PlanRequest, cards: Iterable[DeviceCard], constants: StepConstants | None = None
) -> tuple[list[DeviceSet], list[Refusal]]:
    """For each card its cheapest set, cheapest first (those without a price last, fewest devices first); and why the
    other cards do not do."""
    found: list[DeviceSet] = []
    refused: list[Refusal] = []
    for card in cards:
        if not runs_on(request.settings.engine, card):
            refused.append(Refusal(card=card, reason=f"{request.settings.engine.value} does not run on it."))
            continue
        sets, reason = _sets_of(request, card, constants)
        if sets:
            found.append(min(sets, key=_rank))
        else:
            refused.append(Refusal(card=card, reason=reason))
    return sorted(found, key=_rank), refused


def _sets_of(request: PlanRequest, card: DeviceCard, constants: StepConstants | None) -> tuple[list[DeviceSet], str]:
    asked = request.settings.tensor_parallel
    counts = (asked,) if asked else tuple(count for count in _COUNTS if count <= card.max_devices)
    sets: list[DeviceSet] = []
    reason = f"{card.name} comes at most {card.max_devices} to a host."
    for count in counts:
        try:
            sets.append(device_set(request, card, count, constants, SEARCH_TPOT_S))
        except ConfigError as error:
            reason = str(error)
    return sets, reason


def _rank(found: DeviceSet) -> tuple[bool, float, int]:
    return found.per_hour_usd is None, found.per_hour_usd or 0.0, found.num_devices
