"""Which instance of a fleet gets a request: round-robin, least loaded, or where its prefix is; short and long pools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kvasir.core.errors import ConfigError
from kvasir.simulator.instance import Instance
from kvasir.workload.traces.trace import TraceRequest

MAX_IMBALANCE = 2.0
"""A prefix-affine request goes elsewhere when its instance has more than this many times the least load ..."""
IMBALANCE_SLACK_TOKENS = 16_384
"""... and this many prompt tokens more than it: a hit is not worth any queue."""


class Routing(Enum):
    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    PREFIX = "prefix"


class Router(Protocol):
    def choose(self, request: TraceRequest) -> Instance: ...


class RoundRobin:
    """Each in turn."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances
        self._next = 0

    def choose(self, request: TraceRequest) -> Instance:
        instance = self._instances[self._next % len(self._instances)]
        self._next += 1
        return instance


class LeastLoaded:
    """The fewest prompt tokens sent and not answered; then the fewest requests, then the first."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances

    def choose(self, request: TraceRequest) -> Instance:
        return min(self._instances, key=lambda i: (i.num_unfinished_prompt_tokens, i.num_unfinished, i.instance_id))


class PrefixAffine:
    """Where the longest known prefix of the request went last (or its session, when it has no ids), unless that
    instance is much busier than the least loaded; else the least loaded.

    Keeps one entry for every block id ever seen, as a router without a view into the caches would have to.
    """

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._least_loaded = LeastLoaded(instances)
        self._places: dict[int | str, Instance] = {}

    def choose(self, request: TraceRequest) -> Instance:
        names: Sequence[int | str] = tuple(request.hash_ids) or (
            () if request.session_id is None else (f"session {request.session_id}",)
        )
        found = next((self._places[name] for name in reversed(names) if name in self._places), None)
        idlest = self._least_loaded.choose(request)
        chosen = idlest if found is None or _is_overloaded(found, idlest) else found
        for name in names:
            self._places[name] = chosen
        return chosen


def _is_overloaded(instance: Instance, idlest: Instance) -> bool:
    load, least = instance.num_unfinished_prompt_tokens, idlest.num_unfinished_prompt_tokens
    return load > MAX_IMBALANCE * least and load > least + IMBALANCE_SLACK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """``num_long`` of ``num_instances`` take only prompts of more than ``length_cut`` tokens, the others only shorter
    ones; 0: one pool for all."""

    num_instances: int = 1
    routing: Routing = Routing.LEAST_LOADED
    num_long: int = 0
    length_cut: int = 0

    def __post_init__(self) -> None:
        if self.num_instances < 1:
            raise ConfigError(f"--instances must be at least 1, got {self.num_instances}.")
        if not 0 <= self.num_long < self.num_instances:
            raise ConfigError(
                f"--long-instances {self.num_long} of --instances {self.num_instances} leaves none for short prompts."
            )
        if (self.num_long == 0) != (self.length_cut == 0):
            raise ConfigError("--long-instances and --length-cut go together: give both or neither.")


class LengthPools:
    """Two pools by prompt length, each with a router of its own."""

    def __init__(self, short: Router, long: Router, length_cut: int) -> None:
        self._short = short
        self._long = long
        self._length_cut = length_cut

    def choose(self, request: TraceRequest) -> Instance:
        return (self._long if request.num_prompt_tokens > self._length_cut else self._short).choose(request)


_ROUTERS: dict[Routing, Callable[[Sequence[Instance]], Router]] = {
    Routing.ROUND_ROBIN: RoundRobin,
    Routing.LEAST_LOADED: LeastLoaded,
    Routing.PREFIX: PrefixAffine,
}


def make_router(shape: FleetShape, instances: Sequence[Instance]) -> Router:
    """The last ``num_long`` instances are the long pool."""
    make = _ROUTERS[shape.routing]
    if not shape.num_long:
        return make(instances)
    cut = shape.num_instances - shape.num_long
    return LengthPools(make(instances[:cut]), make(instances[cut:]), shape.length_cut)
