"""Random traces whose prompts share prefixes, and small deployments to play them on."""

from hypothesis import strategies as st

from kvasir.kv.eviction import parse_eviction
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.routing import FleetShape, Routing
from kvasir.simulator.simulate import SimulationSetup
from kvasir.simulator.step_cost import FittedStepCost
from kvasir.workload.traces.trace import Trace, TraceRequest

BLOCK = 16
COST = FittedStepCost(per_step_s=0.01, per_token_s=0.0005, per_sequence_s=0.0003, per_pair_s=1e-6, per_read_s=2e-6)


def make_trace(paths, extras=None, outputs=None, gaps=None) -> Trace:
    """A request for each path in a tree of blocks: equal beginnings of paths are equal prefixes.

    ``extras`` tokens follow the whole blocks of each prompt (0: none), ``gaps`` are the seconds before each request."""
    ids: dict[tuple[int, ...], int] = {}
    requests = []
    now_s = 0.0
    for number, path in enumerate(paths):
        extra = extras[number] if extras else 0
        now_s += gaps[number] if gaps else 0.0
        requests.append(
            TraceRequest(
                request_id=f"r{number}",
                arrival_s=now_s,
                num_prompt_tokens=len(path) * BLOCK + extra,
                num_output_tokens=outputs[number] if outputs else 1,
                hash_ids=tuple(ids.setdefault(tuple(path[: i + 1]), len(ids)) for i in range(len(path))),
            )
        )
    return Trace(name="random", requests=tuple(requests), hash_block_size=BLOCK)


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=24)


@st.composite
def timed_traces(draw):
    paths = draw(PATHS)
    size = len(paths)
    return make_trace(
        paths,
        extras=draw(st.lists(st.integers(0, 15), min_size=size, max_size=size)),
        outputs=draw(st.lists(st.integers(1, 70), min_size=size, max_size=size)),
        gaps=draw(st.lists(st.sampled_from([0.0, 0.0, 0.013, 0.2, 3.0]), min_size=size, max_size=size)),
    )


@st.composite
def setups(draw):
    policy = draw(st.sampled_from(EvictionPolicy))
    is_belady = policy is EvictionPolicy.BELADY
    num_instances = 1 if is_belady else draw(st.integers(1, 3))
    num_long = draw(st.integers(0, num_instances - 1))
    max_num_seqs = draw(st.integers(1, 6))
    return SimulationSetup(
        cost=COST,
        num_blocks=(draw(st.integers(6, 40)),),
        max_model_len=160,
        block_size=BLOCK,
        scheduler=SchedulerConfig(
            max_num_batched_tokens=draw(st.integers(6, 90)),
            max_num_seqs=max_num_seqs,
            max_waiting=draw(st.sampled_from([2, 100])),
        ),
        policy=policy,
        eviction=draw(st.sampled_from([None, None, parse_eviction("keydiff:keep=0.4,sinks=4,recent=9")])),
        enable_prefix_caching=draw(st.booleans()) or is_belady,
        fleet=FleetShape(
            num_instances=num_instances,
            routing=draw(st.sampled_from(Routing)),
            num_long=num_long,
            length_cut=40 if num_long else 0,
        ),
        num_clients=None if is_belady else draw(st.sampled_from([None, 1, 3])),
    )
