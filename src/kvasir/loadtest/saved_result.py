"""A result file read back, with its requests as arrays; ours, or one of ``vllm bench serve``."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvasir.loadtest.result import MARK, VERSION, ResultError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FEWEST_SLICES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One result file.  Arrays have one entry for every request that completed; ``itl_owner`` says whose gap it is.
    ``slices``: rates in equal pieces of the run; empty when the file does not say when requests began."""

    name: str
    data: dict[str, Any]
    latencies_s: dict[str, "NDArray[Any]"]
    itl_owner: "NDArray[Any]"
    slices: dict[str, "NDArray[Any]"]

    @property
    def runs(self) -> list[dict[str, Any]]:
        return self.data.get("runs") or []

    def value(self, key: str) -> float | None:
        value = self.data.get(key)
        return float(value) if isinstance(value, int | float) else None


def read_side(path: Path) -> Side:
    """A result of ours, or of ``vllm bench serve`` (for a band, saved with its details).  Raises ``ResultError``."""
    import numpy as np

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read as a result: {error}.") from error
    if not isinstance(data, dict) or "output_throughput" not in data:
        what = "a sweep; compare single tests" if isinstance(data, dict) and "sweep" in data else "no result of a test"
        raise ResultError(f"{path} is {what}.")
    if data.get(MARK, VERSION) != VERSION:
        raise ResultError(f"{path} has version {data[MARK]} of the format; this program reads version {VERSION}.")
    try:
        details = _details(data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ResultError(f"{path} has lists of requests that do not fit each other ({error!r}).") from error
    if details is not None:
        return Side(name=path.name, data=data, **details)
    empty = np.zeros(0)
    return Side(name=path.name, data=data, latencies_s={}, itl_owner=empty, slices={})


def _details(data: dict[str, Any]) -> dict[str, Any] | None:
    """The arrays of ``Side`` from the lists of a result; None when it has none."""
    import numpy as np

    if "ttfts" not in data or "itls" not in data:
        return None
    errors = data.get("errors") or [""] * len(data["ttfts"])
    rows = [index for index, error in enumerate(errors) if not error and data["ttfts"][index]]
    ttft = np.array([data["ttfts"][row] for row in rows], dtype=float)
    gaps = [data["itls"][row] for row in rows]
    ends = data.get("e2els")
    e2el = np.array(
        [ends[row] if ends else data["ttfts"][row] + math.fsum(data["itls"][row]) for row in rows], dtype=float
    )
    lengths = np.array([data["output_lens"][row] for row in rows], dtype=float)
    several = lengths > 1
    latencies = {
        "ttft": ttft,
        "tpot": (e2el[several] - ttft[several]) / (lengths[several] - 1),
        "itl": np.array([gap for one in gaps for gap in one], dtype=float),
        "e2el": e2el,
    }
    owner = np.repeat(np.arange(len(rows)), [len(one) for one in gaps])
    return {"latencies_s": latencies, "itl_owner": owner, "slices": _slices(data, rows, e2el, lengths)}


def _slices(
    data: dict[str, Any], rows: Sequence[int], e2el: "NDArray[Any]", lengths: "NDArray[Any]"
) -> dict[str, "NDArray[Any]"]:
    """Rates in pieces of a second, or less for short runs; an answer's tokens are spread over its time, so that a piece
    shows what the server did in it."""
    import numpy as np

    starts, duration_s = data.get("start_times"), float(data.get("duration") or 0.0)
    if not starts or duration_s <= 0.0 or len(data.get("runs") or [0]) > 1 or not len(rows):
        return {}
    num_slices = max(_FEWEST_SLICES, int(duration_s))
    edges = np.linspace(0.0, duration_s, num_slices + 1)
    begin = np.array([starts[row] for row in rows], dtype=float)
    end = begin + e2el
    first = begin + np.array([data["ttfts"][row] for row in rows], dtype=float)
    span = np.maximum(end - first, 1e-9)
    tokens = np.zeros(num_slices)
    for index, (low, high) in enumerate(pairwise(edges)):
        share = np.clip(np.minimum(end, high) - np.maximum(first, low), 0.0, None) / span
        tokens[index] = float((share * lengths).sum())
    ended, _ = np.histogram(np.minimum(end, duration_s), edges)
    width_s = duration_s / num_slices
    return {"output_throughput": tokens / width_s, "request_throughput": ended / width_s}
