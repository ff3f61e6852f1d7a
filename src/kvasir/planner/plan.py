"""``make_plan``: everything the report says, as one value; what cannot be had for an engine is said with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvasir.core.errors import ConfigError
from kvasir.hardware.card import DeviceCard
from kvasir.hardware.roofline import StepConstants
from kvasir.kv.format_spec import KVDtype
from kvasir.planner.capacity import capacity_of, lengths_of
from kvasir.planner.context_table import ContextRow, context_rows
from kvasir.planner.device_search import DeviceSet, Refusal, device_set, runs_on, search_devices, speed_of
from kvasir.planner.engines import EngineName
from kvasir.planner.instance import plan_instance
from kvasir.planner.kv_groups import AnyDtype, StoreDtype
from kvasir.planner.launch_flags import LaunchFlags, launch_flags
from kvasir.planner.lengths import LengthSample
from kvasir.planner.log_check import Comparison, LoggedSettings, compare, compare_own
from kvasir.planner.request import PlanRequest, weight_format_of
from kvasir.planner.speed import SpeedModel, speed_note
from kvasir.planner.traps import Trap, find_traps

_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagsOrReason:
    """The command for an engine on the chosen devices, or why there is none."""

    engine: EngineName
    flags: LaunchFlags | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``chosen`` is what the tables are about: the named device, or the cheapest of the search."""

    request: PlanRequest
    sample: LengthSample
    chosen: DeviceSet
    speed: SpeedModel
    rows: tuple[ContextRow, ...]
    sets: tuple[DeviceSet, ...]
    refusals: tuple[Refusal, ...]
    commands: tuple[FlagsOrReason, ...]
    traps: tuple[tuple[Trap, str], ...]
    log_comparisons: tuple[Comparison, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, of the model and of the machine."""
        speed = speed_note(self.request.shape, self.chosen.instance.card)
        return (*self.request.shape.notes, *self.request.notes, *((speed,) if speed else ()))


def make_plan(
    request: PlanRequest,
    cards: Sequence[DeviceCard],
    candidates: Sequence[DeviceCard],
    constants: StepConstants | None = None,
) -> Plan:
    """``cards`` are the devices named by the user ([]: the cheapest of ``candidates`` is chosen); ``candidates`` are
    searched.  Raises ``ConfigError`` when the load fits nowhere."""
    sets, refusals = search_devices(request, candidates, constants)
    chosen = _choose(request, cards, sets, constants)
    sample = lengths_of(request)
    speed = speed_of(request, chosen.instance, constants)
    return Plan(
        request=request,
        sample=sample,
        chosen=chosen,
        speed=speed,
        rows=context_rows(request, chosen.instance, speed),
        sets=tuple(sets),
        refusals=tuple(refusals),
        commands=tuple(_command(request, engine, chosen) for engine in EngineName),
        traps=find_traps(request, chosen.instance, chosen.capacity, sample),
        log_comparisons=_log_comparisons(request, chosen),
    )


def _choose(
    request: PlanRequest, cards: Sequence[DeviceCard], sets: Sequence[DeviceSet], constants: StepConstants | None
) -> DeviceSet:
    """The named device at the fewest devices an instance that hold the load; else the cheapest set found."""
    if not cards:
        if not sets:
            raise ConfigError(
                f"None of the known devices holds one sequence of this load with {request.settings.engine.value}; "
                "take a smaller model, fewer bits, or a shorter context."
            )
        return sets[0]
    reason = ""
    for card in cards:
        asked = request.settings.tensor_parallel
        for count in (asked,) if asked else (c for c in _COUNTS if c <= card.max_devices):
            try:
                return device_set(request, card, count, constants)
            except ConfigError as error:
                reason = str(error)
    raise ConfigError(f"The load does not fit on {', '.join(card.name for card in cards)}: {reason}")


def _command(request: PlanRequest, engine: EngineName, chosen: DeviceSet) -> FlagsOrReason:
    """The same load under ``engine`` on the chosen devices."""
    other = _as_other(request, engine)
    card, count = chosen.instance.card, chosen.instance.num_devices
    if engine is not request.settings.engine and not runs_on(engine, card):
        return FlagsOrReason(engine=engine, reason=f"does not run on {card.name}")
    try:
        instance = plan_instance(other, card, count)
        capacity = capacity_of(other, instance, lengths_of(other))
        return FlagsOrReason(engine=engine, flags=launch_flags(other, instance, capacity))
    except ConfigError as error:
        return FlagsOrReason(engine=engine, reason=str(error))


def _as_other(request: PlanRequest, engine: EngineName) -> PlanRequest:
    """Settings that mean something else elsewhere go back to that engine's defaults; so do formats it lacks."""
    if engine is request.settings.engine:
        return request
    settings = replace(request.settings, engine=engine, version="", utilization=None, block_size=None)
    settings = replace(settings, max_num_seqs=None, max_num_batched_tokens=None)
    is_ours = request.settings.engine is EngineName.KVASIR
    return replace(
        request,
        settings=settings,
        weights=weight_format_of(request.shape) if is_ours else request.weights,
        log=None,
        k_dtype=_format_for(engine, request.k_dtype),
        v_dtype=_format_for(engine, request.v_dtype),
    )


_DENSE = frozenset({KVDtype.BF16, KVDtype.FP16, KVDtype.FP32})


def _format_for(engine: EngineName, dtype: AnyDtype) -> AnyDtype:
    """The nearest format that ``engine`` has: 8 bits stay 8 bits where it can store them, else 16."""
    if dtype in _DENSE:
        return dtype
    if engine is EngineName.LLAMA_CPP:
        return dtype if isinstance(dtype, StoreDtype) and dtype is not StoreDtype.FP8 else StoreDtype.Q8_0
    if engine is EngineName.KVASIR:
        return dtype if isinstance(dtype, KVDtype) else KVDtype.BF16
    return StoreDtype.FP8


def _log_comparisons(request: PlanRequest, chosen: DeviceSet) -> tuple[Comparison, ...]:
    log, own = request.log, request.own
    if log is None:
        return ()
    if log.engine is EngineName.KVASIR and own is not None:
        return compare_own(own, request.weight_bytes, log)
    settings = LoggedSettings(
        form=chosen.instance.form,
        max_num_batched_tokens=request.settings.max_num_batched_tokens or 8192,
    )
    return compare(request.shape, replace(log, version=request.settings.effective_version), settings)
