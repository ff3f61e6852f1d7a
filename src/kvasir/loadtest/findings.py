"""What a reader must know before believing the figures: short runs, a late client, chunks that are not tokens."""

from collections.abc import Sequence

from kvasir.loadtest.compare import CONFIDENCE, Band, Comparison
from kvasir.loadtest.load_test import LoadTest, RunData
from kvasir.loadtest.record import CountedBy
from kvasir.loadtest.result import BenchResult
from kvasir.loadtest.self_watch import LATE_S
from kvasir.loadtest.sweep import SweepPoint, Verdict

_FEW_FOR_P99 = 100
_FEW_FOR_A_POINT = 50
_MANY_TOKENS_A_CHUNK = 1.15
_BUSY = 0.85
_LONG_WAIT_S = 0.1
_LONG_CONNECT_S = 0.005
_MAX_DOUBTS = 3


def notes_on(result: BenchResult, test: LoadTest) -> list[str]:
    """Sentences; none when there is nothing to warn of."""
    return [*_on_end(result), *_on_tokens(result, test), *_on_client(result.runs), *_on_load(result, test)]


def sweep_notes(points: Sequence[SweepPoint], verdict: Verdict | None, test: LoadTest) -> list[str]:
    """What holds for a whole sweep, each said once."""
    notes = ["No request was answered, so there is no operating point."] if verdict is None else []
    if verdict is not None and verdict.caution:
        notes.append(verdict.caution)
    for point in points:
        notes += [f"{point.label}: {one.count} x {one.label}: {one.example}" for one in point.measures.failures]
        if not point.result.end_reason.is_orderly:
            notes.append(f"{point.label} ended early ({point.result.end_reason.value}).")
    fewest = min((point.measures.num_completed for point in points), default=0)
    if 0 < fewest < _FEW_FOR_A_POINT:
        notes.append(
            f"A point has as few as {fewest} requests: small differences are noise (--num-prompts, --repeat give more)."
        )
    tokens = [note for point in points for note in _on_tokens(point.result, test)]
    runs = [run for point in points for run in point.result.runs]
    return [*notes, *list(dict.fromkeys(tokens))[:_MAX_DOUBTS], *_on_client(runs)]


def band_notes(comparison: Comparison) -> list[str]:
    """What the two do not share, and what the band is worth."""
    notes = [f"The two differ in {name}: {a} against {b}." for name, a, b in comparison.unlike]
    bands = {difference.band for difference in comparison.differences}
    if not bands:
        return [*notes, "The two have no measure in common."]
    notes += [_BAND_NOTES[band] for band in Band if band in bands]
    num = len(comparison.differences)
    chance = (1 - CONFIDENCE) * num
    return [*notes, f"At {100 * CONFIDENCE:.0f} %, {chance:.1f} of {num} lines leave their band by chance alone."]


_BAND_NOTES = {
    Band.RUNS: "The band is Welch's interval over the repeated runs of both.",
    Band.BOOTSTRAP: "The band comes from drawing the requests of single runs anew and knows nothing of how runs differ "
    "from each other: it is the least the noise can be.  Use --repeat for an honest one.",
    Band.NONE: "Some lines have no band: there are too few requests, or a file without its lists of requests.",
}


def _on_end(result: BenchResult) -> list[str]:
    measures = result.measures
    notes = []
    if not result.end_reason.is_orderly:
        notes.append(
            f"The run ended early ({result.end_reason.value}): the figures are of the {measures.num_completed} "
            f"requests that completed, {measures.num_aborted} were cut off and {result.num_not_sent} never sent."
        )
    if 0 < measures.num_completed < _FEW_FOR_P99:
        notes.append(f"The 99th percentile of {measures.num_completed} requests is little more than their maximum.")
    return notes


def _on_tokens(result: BenchResult, test: LoadTest) -> list[str]:
    measures = result.measures
    counted = measures.output_counted_by
    notes = []
    if CountedBy.CHUNKS in counted:
        notes.append(
            f"The server gave no usage for {counted[CountedBy.CHUNKS]} answers: their tokens are counted as chunks, "
            "too few where a chunk holds several tokens."
        )
    elif measures.tokens_per_chunk is not None and measures.tokens_per_chunk > _MANY_TOKENS_A_CHUNK:
        notes.append(
            f"The server sends {measures.tokens_per_chunk:.2f} tokens a chunk, so ITL is a time between chunks; TPOT "
            "is per token."
        )
    rate = test.preflight.rate
    if CountedBy.PLAN in measures.prompt_counted_by and not rate.is_measured:
        notes.append("The server gave no usage, so prompt tokens are what was meant to be sent.")
    return notes


def _on_client(runs: Sequence[RunData]) -> list[str]:
    notes = []
    late_s = max(run.cost.lag_p99_s for run in runs)
    busy = max(run.cost.cpu_share for run in runs)
    if late_s > LATE_S:
        notes.append(
            f"This client's own loop was up to {1000 * late_s:.0f} ms late (99th percentile): times are blurred by as "
            "much.  Run it on a machine, or cores, of its own."
        )
    if busy > _BUSY:
        notes.append(f"This client used {100 * busy:.0f} % of a core: it may be what limits the load.")
    return notes


def _on_load(result: BenchResult, test: LoadTest) -> list[str]:
    run, measures = result.runs[0], result.measures
    notes = []
    connect = result.measures.connect_s
    if connect is not None and connect.median > _LONG_CONNECT_S:
        notes.append(
            f"TTFT of {connect.num_values} requests includes the time to connect, {1000 * connect.median:.0f} ms."
        )
    if run.num_left_out:
        notes.append(
            f"{run.num_left_out:,} recordings were left out: too long for {test.max_tokens} tokens, or too short."
        )
    wanted = run.point.num_sessions
    if wanted is not None and run.num_sessions < wanted:
        notes.append(f"The file has {run.num_sessions} that fit, of the {wanted} that were asked for.")
    is_open = run.point.request_rate != float("inf")
    wait = measures.wait_s
    if is_open and run.point.max_concurrency and wait is not None and wait.max > _LONG_WAIT_S:
        notes.append(
            f"Requests were sent up to {wait.max:.1f} s later than planned because {run.point.max_concurrency} were in "
            "flight already; no latency includes that wait."
        )
    return notes
