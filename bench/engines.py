"""What the engine measurements share: flags on the command line, the machine's ceiling first, a warm engine."""

import argparse
import re
import resource
from pathlib import Path

from kvasir.claims.ceiling import Ceiling, probe_ceiling_apart
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.engine.engine import Engine
from kvasir.engine.flags import effective_flags, make_engine_config
from kvasir.workload.driver import LoadResult, play
from kvasir.workload.prompts import make_token_ids

RESULTS = Path(__file__).parent / "results"
FIRST_ID, LAST_ID = 100, 40_000
"""Token ids that prompts are made of: ordinary ones in every vocabulary we serve."""


def parser(description: str | None, output: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--runs", type=int, default=3)
    made.add_argument("--output", type=Path, default=RESULTS / output)
    made.add_argument("--model", default="demo")
    made.add_argument("--weight-dtype", default="int8")
    made.add_argument("--kv-cache-dtype", default="auto")
    return made


def show_ceiling() -> Ceiling:
    """Probed in another process (its memory is not ours) and printed before anything is measured."""
    ceiling = probe_ceiling_apart()
    print(ceiling.describe(), flush=True)
    return ceiling


def open_engine(arguments: argparse.Namespace, **flags: object) -> Engine:
    """A warm engine; ``flags`` are those of ``kvasir serve`` with underscores."""
    config = make_engine_config(
        model=arguments.model,
        weight_dtype=arguments.weight_dtype,
        kv_cache_dtype=arguments.kv_cache_dtype,
        **flags,  # type: ignore[arg-type]
    )
    engine = Engine.from_config(config)
    warm_up(engine)
    return engine


def warm_up(engine: Engine) -> None:
    """The first steps pay for thread pools and buffers; nobody measures those."""
    play(engine, [request("warm-up", 64, 4, seed=0)])
    engine.reset_prefix_cache()


def describe_engine(engine: Engine) -> dict[str, object]:
    return {
        "flags": effective_flags(engine.config),
        "kernels": engine.kernels_name,
        "weights_bytes": engine.weights_bytes,
        "pool_bytes": engine.memory.pool_bytes,
    }


def request(name: str, num_prompt: int, num_output: int, seed: int, prefix: tuple[int, ...] = ()) -> Request:
    """Random prompt of ``prefix`` and ``num_prompt`` tokens, exactly ``num_output`` out, greedy."""
    return Request(
        request_id=name,
        prompt_token_ids=prefix + make_token_ids(num_prompt, seed, first_id=FIRST_ID, last_id=LAST_ID),
        sampling=SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True),
    )


def decode_tokens_per_s(load: LoadResult) -> float:
    """Tokens a second while every stream is decoding: from the last first token to the first last one."""
    start = max(times[0] for times in load.token_times_s.values())
    end = min(times[-1] for times in load.token_times_s.values())
    count = sum(sum(start < time <= end for time in times) for times in load.token_times_s.values())
    return count / (end - start)


def peak_memory_bytes() -> int:
    """The most memory this process ever had resident.

    From the kernel's VmHWM where there is one: ``ru_maxrss`` starts at what the parent had when it forked."""
    status = Path("/proc/self/status")
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(peak[1]) << 10 if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
