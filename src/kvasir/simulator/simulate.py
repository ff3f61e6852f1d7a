"""A whole simulation: set-up in, result out."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress
from kvasir.core.sequence import Sequence
from kvasir.core.step import StepPlan
from kvasir.kv.eviction import EvictionRule
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.kv.retention import Retention
from kvasir.kv.spec import KVSpec
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.arrival_source import ClosedLoop, OpenLoop
from kvasir.simulator.eviction import EvictionPolicy, FutureUses, free_list_maker
from kvasir.simulator.fleet import Fleet
from kvasir.simulator.hashed_request import check_block_sizes, hashed_content, make_request
from kvasir.simulator.instance import Instance
from kvasir.simulator.outcome import SimulationResult
from kvasir.simulator.recorder import Recorder
from kvasir.simulator.routing import FleetShape, make_router
from kvasir.simulator.step_cost import StepCost
from kvasir.workload.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSetup:
    """One deployment: how long steps take, how large each instance's pool is, how it is told to schedule.

    ``num_blocks`` has an entry for each of ``cost.retentions``.  ``policy`` is for cached blocks, ``eviction`` cuts the
    prompts of running requests.  ``num_clients`` closes the loop: that many clients
    wait for their answers; None plays the trace at its own times.
    """

    cost: StepCost
    num_blocks: tuple[int, ...]
    max_model_len: int
    block_size: int = 16
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    policy: EvictionPolicy = EvictionPolicy.LRU
    eviction: EvictionRule | None = None
    enable_prefix_caching: bool = True
    fleet: FleetShape = field(default_factory=FleetShape)
    num_clients: int | None = None


def simulate(
    trace: Trace,
    setup: SimulationSetup,
    progress: Progress = no_progress,
    stage: str = "simulate",
    recorder: Recorder | None = None,
    takes_runs: bool = True,
) -> SimulationResult:
    """Play ``trace`` on ``setup``.  Same arguments, same result; ``takes_runs`` False takes every step
    by itself, for those who doubt that it makes no difference.  Raises ``ConfigError`` for what cannot work."""
    check_block_sizes(setup.block_size, trace.hash_block_size)
    recorder = recorder or Recorder()
    recorder.on_done = lambda num_done: progress(stage, num_done / len(trace))
    manager = manager_config(setup)
    future = _make_future(trace, setup, manager) if setup.policy is EvictionPolicy.BELADY else None
    manager = replace(manager, make_free_list=free_list_maker(setup.policy, future))
    instances = [
        Instance(
            i,
            manager,
            setup.scheduler,
            recorder.executor(i, setup.cost),
            on_starts=None if future is None else _watcher(trace, future),
            takes_runs=takes_runs,
        )
        for i in range(setup.fleet.num_instances)
    ]
    fleet = Fleet(
        instances=instances,
        router=make_router(setup.fleet, instances),
        make_request=lambda recorded: make_request(recorded, trace.hash_block_size),
    )
    source = OpenLoop(trace) if setup.num_clients is None else ClosedLoop(trace, setup.num_clients)
    duration_s = fleet.run(source, recorder)
    progress(stage, 1.0)
    return recorder.close(instances, duration_s)


def manager_config(setup: SimulationSetup) -> KVManagerConfig:
    """What each instance's block manager is told; the order of eviction is left at the engine's own."""
    return KVManagerConfig(
        layout=rules_layout(setup.cost.retentions, setup.block_size),
        num_blocks=setup.num_blocks,
        max_model_len=setup.max_model_len,
        max_chunk_tokens=setup.scheduler.max_num_batched_tokens,
        enable_prefix_caching=setup.enable_prefix_caching,
        eviction=setup.eviction,
        content_of=hashed_content,
    )


def rules_layout(retentions: tuple[Retention, ...], block_size: int) -> KVLayout:
    """One group for each rule, with one head: the manager asks a layout for rules and block size only."""
    groups = tuple(
        KVSpec(
            block_size=block_size,
            head_dim=16,
            heads_by_layer=tuple((0,) if layer == place else () for layer in range(len(retentions))),
            k_dtype=KVDtype.BF16,
            v_dtype=KVDtype.BF16,
            retention=retention,
        )
        for place, retention in enumerate(retentions)
    )
    return KVLayout(groups=groups, num_layers=len(groups), num_kv_heads=1)


def _make_future(trace: Trace, setup: SimulationSetup, config: KVManagerConfig) -> FutureUses:
    """Which blocks each request of the trace will look up, in order of arrival."""
    if setup.fleet.num_instances > 1 or setup.num_clients is not None:
        raise ConfigError(
            "--policy belady looks into the future of one instance, so it needs --instances 1 and the trace's own "
            "times (no --concurrency)."
        )
    future = FutureUses()
    manager = KVManager(config)
    for number, recorded in enumerate(trace.requests):
        sequence = Sequence(sequence_id=number, request=make_request(recorded, trace.hash_block_size))
        future.expect(manager.keys_of(sequence, recorded.num_prompt_tokens // setup.block_size))
        manager.release(sequence)
    future.freeze()
    return future


def _watcher(trace: Trace, future: FutureUses) -> Callable[[Instance, StepPlan], None]:
    """Tells ``future`` which requests have been served from the cache: those that a plan starts."""
    numbers = {recorded.request_id: number for number, recorded in enumerate(trace.requests)}

    def watch(instance: Instance, plan: StepPlan) -> None:
        started = {start.sequence_id for start in plan.starts}
        for sequence in instance.scheduler.running:
            if sequence.sequence_id in started:
                future.come(numbers[sequence.request.request_id])

    return watch
