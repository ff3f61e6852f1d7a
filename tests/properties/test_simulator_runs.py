"""Steps taken at once leave everything as single steps do: every request's times, every block, every counter."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_traffic import BLOCK, COST, make_trace, setups, timed_traces

from kvasir.kv.audit import audit
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.outcome import SimulationResult
from kvasir.simulator.recorder import Recorder
from kvasir.simulator.routing import FleetShape, Routing
from kvasir.simulator.simulate import SimulationSetup, simulate


class Watching(Recorder):
    """Also keeps what the block managers look like at the end."""

    def close(self, instances, duration_s) -> SimulationResult:
        self.caches = []
        for instance in instances:
            audit(instance.manager)
            (pool,) = instance.manager.pools
            self.caches.append(([(block.block_id, block.key) for block in pool.free_list], instance.scheduler.stats))
        return super().close(instances, duration_s)


def play(trace, setup, takes_runs):
    recorder = Watching()
    result = simulate(trace, setup, recorder=recorder, takes_runs=takes_runs)
    totals = [(one.num_requests, one.num_steps, one.num_computed_tokens) for one in result.instances]
    busy = [round(one.busy_s, 6) for one in result.instances]
    return result.outcomes, result.refused, result.gaps_us, result.duration_s, recorder.caches, totals, busy


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(trace=timed_traces(), setup=setups())
def test_runs_change_nothing_but_speed(trace, setup):
    assert play(trace, setup, takes_runs=True) == play(trace, setup, takes_runs=False)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    outputs=st.lists(st.integers(10, 70), min_size=8, max_size=16),
    clients=st.integers(3, 6),
    routing=st.sampled_from(Routing),
)
def test_an_end_elsewhere_in_a_fleet_cuts_a_run_short(outputs, clients, routing):
    """Answers of one instance bring requests to another in the middle of what it could foresee alone."""
    trace = make_trace([[number] for number in range(len(outputs))], outputs=outputs)
    setup = SimulationSetup(
        cost=COST,
        num_blocks=(60,),
        max_model_len=160,
        block_size=BLOCK,
        scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8),
        fleet=FleetShape(num_instances=2, routing=routing),
        num_clients=clients,
    )
    assert play(trace, setup, takes_runs=True) == play(trace, setup, takes_runs=False)
