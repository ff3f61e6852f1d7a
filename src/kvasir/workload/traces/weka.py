"""Agentic sessions (WEKA's corpus of recorded coding sessions), one session a line with its requests inside.

Source of the recordings: github.com/callanjfox/kv-cache-tester; ``hash_runs`` is a lossless run-length form of its
``hash_ids``: [[start, n], ...] stands for start .. start + n - 1.
"""

import random
from pathlib import Path
from typing import Any

from kvasir.workload.traces.lines import count, json_lines, seconds
from kvasir.workload.traces.trace import IdRuns, Trace, TraceError, TraceRequest, in_order

_IDS_PER_SESSION = 1 << 32


def read_weka(path: Path, session_rate: float = 0.05, seed: int = 0) -> Trace:
    """Sessions have no common clock: they start as a Poisson process of ``session_rate`` sessions a second, drawn from
    ``seed``; inside a session the recorded times hold.  Ids are made global: sessions share nothing."""
    if session_rate <= 0:
        raise TraceError(f"Sessions can start at a rate of {session_rate} a second only if that is above 0.")
    rng = random.Random(seed)
    requests: list[TraceRequest] = []
    start_s, block_size = 0.0, 0
    for session, (number, values) in enumerate(json_lines(path)):
        size = count(path, number, values, "block_size", 1)
        if block_size not in (0, size):
            raise TraceError(
                f"{path.name} line {number} has blocks of {size} tokens, the lines before of {block_size}."
            )
        block_size = size
        for index, entry in enumerate(values.get("requests", [])):
            requests.append(_request(path, number, entry, (session, index), start_s))
        start_s += rng.expovariate(session_rate)
    return Trace(name=path.stem, requests=in_order(requests), hash_block_size=block_size)


def _request(path: Path, number: int, entry: dict[str, Any], place: tuple[int, int], start_s: float) -> TraceRequest:
    session, index = place
    offset = session * _IDS_PER_SESSION
    return TraceRequest(
        request_id=f"{session}.{index}",
        arrival_s=start_s + seconds(path, number, entry, "t"),
        num_prompt_tokens=count(path, number, entry, "in", 1),
        num_output_tokens=max(1, count(path, number, entry, "out", 0)),
        hash_ids=IdRuns([range(offset + first, offset + first + length) for first, length in entry["hash_runs"]]),
        session_id=str(session),
        # Unknown where the one before had not been answered yet.
        think_s=0.0 if entry.get("think_time") is None else seconds(path, number, entry, "think_time"),
    )
