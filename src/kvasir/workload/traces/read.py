"""Reads any trace: the format is told, or seen from the first line."""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvasir.workload.traces.bailian import read_bailian
from kvasir.workload.traces.lines import json_lines
from kvasir.workload.traces.mooncake import HASH_BLOCK_SIZE, read_mooncake
from kvasir.workload.traces.openai_jsonl import TextTokenizer, read_openai_jsonl
from kvasir.workload.traces.request_log import MARK, read_request_log
from kvasir.workload.traces.tables import read_azure, read_burst_gpt, read_lengths
from kvasir.workload.traces.trace import Trace, TraceError
from kvasir.workload.traces.weka import read_weka


class TraceFormat(Enum):
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    AZURE = "azure"
    BURST_GPT = "burstgpt"
    LENGTHS = "lengths"
    WEKA = "weka"
    REQUEST_LOG = "kvasir"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a file cannot say by itself.  ``make_tokenizer`` is called only for traces of texts."""

    hash_block_size: int = HASH_BLOCK_SIZE
    session_rate: float = 0.05
    seed: int = 0
    make_tokenizer: Callable[[], TextTokenizer] | None = None


def read_trace(path: Path, options: ReadOptions | None = None, trace_format: TraceFormat | None = None) -> Trace:
    """Raises ``TraceError`` when the file is none of the formats, has a bad line, or has no request."""
    options = options or ReadOptions()
    trace_format = trace_format or detect_format(path)
    trace = _READERS[trace_format](path, options)
    if not trace.requests:
        raise TraceError(f"The trace {path} has no requests.")
    seen: set[str] = set()
    for request in trace.requests:
        if request.request_id in seen:
            raise TraceError(f"The trace {path.name} has two requests named {request.request_id!r}; names must differ.")
        seen.add(request.request_id)
    return trace


def detect_format(path: Path) -> TraceFormat:
    """By the names of the first line's fields or columns.  Raises ``TraceError``."""
    names = _first_names(path)
    for trace_format, needed in _MARKS.items():
        if any(needs <= names for needs in needed):
            return trace_format
    raise TraceError(
        f"{path.name} is none of the known traces ({', '.join(f.value for f in TraceFormat)}): its first line has "
        f"{', '.join(sorted(names)[:12]) or 'nothing'}."
    )


def _first_names(path: Path) -> set[str]:
    try:
        with path.open(encoding="utf-8") as file:
            first = next((line for line in file if line.strip()), "")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"The trace {path} cannot be read: {error}.") from error
    if first.lstrip().startswith("{"):
        _, values = next(json_lines(path))
        return set(values) | {f"body.{name}" for name in _body_names(first)}
    return {name.strip() for name in next(csv.reader([first]), [])}


def _body_names(line: str) -> list[str]:
    body = json.loads(line).get("body")
    return list(body) if isinstance(body, dict) else []


# The first format whose fields are all there; the more telling ones come first.
_MARKS: dict[TraceFormat, tuple[set[str], ...]] = {
    TraceFormat.REQUEST_LOG: ({MARK},),
    TraceFormat.BAILIAN: ({"chat_id", "input_length", "output_length", "timestamp"},),
    TraceFormat.MOONCAKE: ({"timestamp", "input_length", "output_length"},),
    TraceFormat.WEKA: ({"requests", "block_size"},),
    TraceFormat.OPENAI: ({"messages"}, {"prompt"}, {"body.messages"}, {"body.prompt"}),
    TraceFormat.AZURE: ({"TIMESTAMP", "ContextTokens", "GeneratedTokens"},),
    TraceFormat.BURST_GPT: ({"Timestamp", "Request tokens", "Response tokens"},),
    TraceFormat.LENGTHS: ({"num_prefill_tokens", "num_decode_tokens"},),
}


def _read_openai(path: Path, options: ReadOptions) -> Trace:
    if options.make_tokenizer is None:
        raise TraceError(f"{path.name} holds texts, and no model was named whose tokenizer could count them.")
    return read_openai_jsonl(path, options.make_tokenizer())


_READERS: dict[TraceFormat, Callable[[Path, ReadOptions], Trace]] = {
    TraceFormat.MOONCAKE: lambda path, options: read_mooncake(path, options.hash_block_size),
    TraceFormat.BAILIAN: lambda path, _: read_bailian(path),
    TraceFormat.AZURE: lambda path, _: read_azure(path),
    TraceFormat.BURST_GPT: lambda path, _: read_burst_gpt(path),
    TraceFormat.LENGTHS: lambda path, _: read_lengths(path),
    TraceFormat.WEKA: lambda path, options: read_weka(path, options.session_rate, options.seed),
    TraceFormat.REQUEST_LOG: lambda path, _: read_request_log(path),
    TraceFormat.OPENAI: _read_openai,
}
