"""Traces that are tables of lengths: Azure LLM inference, BurstGPT, and plain length files.  Nothing is shared."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from kvasir.workload.traces.lines import count, csv_rows, seconds
from kvasir.workload.traces.trace import Trace, TraceError, TraceRequest, in_order


def read_azure(path: Path) -> Trace:
    """TIMESTAMP, ContextTokens, GeneratedTokens (github.com/Azure/AzurePublicDataset; Splitwise, ISCA'24)."""
    return _read(path, "ContextTokens", "GeneratedTokens", _azure_time)


def read_burst_gpt(path: Path) -> Trace:
    """Timestamp (s), Request tokens, Response tokens (github.com/HPMLL/BurstGPT); failed requests are left out."""
    return _read(path, "Request tokens", "Response tokens", lambda path, n, row: seconds(path, n, row, "Timestamp"))


def read_lengths(path: Path) -> Trace:
    """num_prefill_tokens, num_decode_tokens without times (github.com/microsoft/vidur): all arrive at 0."""
    return _read(path, "num_prefill_tokens", "num_decode_tokens", None)


def _read(
    path: Path,
    prompt_column: str,
    output_column: str,
    time_of: Callable[[Path, int, dict[str, str]], float] | None,
) -> Trace:
    requests = []
    for number, row in csv_rows(path):
        num_output_tokens = count(path, number, row, output_column, 0)
        if num_output_tokens == 0:
            continue  # a request that failed: it has no answer whose time could be compared
        requests.append(
            TraceRequest(
                request_id=str(number - 2),
                arrival_s=0.0 if time_of is None else time_of(path, number, row),
                num_prompt_tokens=count(path, number, row, prompt_column, 1),
                num_output_tokens=num_output_tokens,
            )
        )
    return Trace(name=path.stem, requests=in_order(requests), has_times=time_of is not None)


def _azure_time(path: Path, number: int, row: dict[str, str]) -> float:
    text = row["TIMESTAMP"].strip()
    try:
        # Seven digits of a second are written; datetime takes six.
        whole, _, fraction = text.partition(".")
        return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        raise TraceError(f"{path.name} line {number} has TIMESTAMP = {text!r}, which is not a time.") from None
