"""From the traffic options of ``kvasir simulate`` to a trace."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvasir.cli.simulate_options import Given
from kvasir.core.errors import ConfigError
from kvasir.workload.arrivals import ArrivalProcess
from kvasir.workload.traces.mooncake import write_mooncake
from kvasir.workload.traces.openai_jsonl import TextTokenizer
from kvasir.workload.traces.read import ReadOptions, read_trace
from kvasir.workload.traces.trace import Trace


def load_traffic(given: Given, make_tokenizer: Callable[[], TextTokenizer]) -> Trace:
    """Raises ``TraceError`` or ``ConfigError``.  ``make_tokenizer`` is called only for traces that hold text."""
    if given["trace"] is None:
        raise ConfigError("Name the traffic to play with --trace FILE.")
    options = ReadOptions(seed=given["seed"] or 0, make_tokenizer=make_tokenizer)
    if given["hash_block_size"] is not None:
        options = replace(options, hash_block_size=given["hash_block_size"])
    if given["session_rate"] is not None:
        options = replace(options, session_rate=given["session_rate"])
    trace = read_trace(Path(given["trace"]), options, given["trace_format"])
    if (longest := given["max_context"]) is not None:
        trace = trace.where(lambda r: r.num_prompt_tokens + r.num_output_tokens <= longest)
    if given["num_prompts"] is not None:
        trace = trace.head(given["num_prompts"])
    if not trace.requests:
        raise ConfigError("No request of the trace is left to play.")
    return _timed(trace, given)


def _timed(trace: Trace, given: Given) -> Trace:
    rate, speed = given["request_rate"], given["trace_speed"]
    if rate is not None and speed is not None:
        raise ConfigError("--request-rate and --trace-speed both set the times of arrival; give one of them.")
    if given["burstiness"] is not None and rate is None:
        raise ConfigError("--burstiness shapes the gaps of a --request-rate; give that too.")
    if rate is not None:
        arrivals = ArrivalProcess(rate=rate, burstiness=given["burstiness"] or 1.0, seed=given["seed"] or 0)
        return trace.at(arrivals.times_s(len(trace)))
    if speed is not None:
        return trace.faster(speed)
    return trace


def emit(trace: Trace, path: Path) -> None:
    try:
        write_mooncake(trace, path)
    except OSError as error:
        raise ConfigError(f"The trace cannot be written to {path} ({error.strerror or error}).") from error


def describe(trace: Trace) -> str:
    """The traffic in one line."""
    shared = f"blocks of {trace.hash_block_size} tokens" if trace.hash_block_size else "no block ids"
    rate = "all at once" if trace.duration_s == 0 else f"{trace.rate:.3g} requests/s over {trace.duration_s:,.0f} s"
    return (
        f"{trace.name}: {len(trace):,} requests, {trace.num_prompt_tokens:,} prompt and {trace.num_output_tokens:,} "
        f"output tokens, {rate}, {shared}"
    )
