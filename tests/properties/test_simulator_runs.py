"""Steps taken at once leave everything as single steps do: every request's times, every block, every counter."""

from hypothesis import HealthCheck, given, settings
from simulated_traffic import setups, timed_traces

from kvasir.kv.audit import audit
from kvasir.simulator.outcome import SimulationResult
from kvasir.simulator.recorder import Recorder
from kvasir.simulator.simulate import simulate


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
    return result.outcomes, result.refused, result.step_times, result.duration_s, recorder.caches, totals, busy


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(trace=timed_traces(), setup=setups())
def test_runs_change_nothing_but_speed(trace, setup):
    assert play(trace, setup, takes_runs=True) == play(trace, setup, takes_runs=False)
