"""Kvasir's own request log: one JSON line a finished request, lengths and times and block keys, no text.

    {"kvasir_request_log": 1, "request_id": "cmpl-8f2", "arrival_s": 1764432000.25, "num_prompt_tokens": 812,
     "num_output_tokens": 120, "num_cached_tokens": 768, "queue_s": 0.01, "ttft_s": 0.21, "e2e_s": 3.9,
     "num_preemptions": 0, "finish_reason": "stop", "session_id": null,
     "block_size": 16, "block_keys": ["5d1f0a94c3b2e617", ...]}

``arrival_s`` is seconds on any clock that all lines share.  ``block_keys[i]`` are the first 16 hex digits of the prefix
key of the prompt's whole block i, which names the block and all before it (``kv/hashing.py``): enough to replay what is
shared, and no way back to the text.  Later versions may add fields; readers ignore those they do not know.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from kvasir.core.events import RequestFinishedEvent
from kvasir.workload.traces.lines import count, json_lines, seconds
from kvasir.workload.traces.trace import Trace, TraceError, TraceRequest, in_order

MARK = "kvasir_request_log"
VERSION = 1
KEY_HEX_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLogLine:
    """One finished request; ``block_keys`` are full keys or their first ``KEY_HEX_DIGITS`` hex digits."""

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    queue_s: float
    ttft_s: float | None
    e2e_s: float
    num_preemptions: int
    finish_reason: str
    block_size: int
    block_keys: tuple[str, ...]
    session_id: str | None = None

    @classmethod
    def from_event(
        cls, event: RequestFinishedEvent, *, arrival_s: float, block_size: int, block_keys: list[bytes]
    ) -> Self:
        """What the engine said at the end of a request, with the keys of its prompt's whole blocks."""
        return cls(
            request_id=event.request_id,
            arrival_s=arrival_s,
            num_prompt_tokens=event.num_prompt_tokens,
            num_output_tokens=event.num_output_tokens,
            num_cached_tokens=event.num_cached_tokens,
            queue_s=event.queue_s,
            ttft_s=event.ttft_s,
            e2e_s=event.e2e_s,
            num_preemptions=event.num_preemptions,
            finish_reason=event.finish_reason.value,
            block_size=block_size,
            block_keys=tuple(key.hex()[:KEY_HEX_DIGITS] for key in block_keys[: event.num_prompt_tokens // block_size]),
        )

    def to_json(self) -> str:
        return json.dumps({MARK: VERSION} | asdict(self))


def read_request_log(path: Path) -> Trace:
    """Requests that produced no token are left out: they say nothing about load.  Raises ``TraceError``."""
    requests: list[TraceRequest] = []
    block_size = 0
    for number, values in json_lines(path):
        if values.get(MARK) != VERSION:
            raise TraceError(f"{path.name} line {number} is not a version {VERSION} request log line.")
        size = count(path, number, values, "block_size", 1)
        if block_size not in (0, size):
            raise TraceError(
                f"{path.name} line {number} has blocks of {size} tokens, the lines before of {block_size}."
            )
        block_size = size
        num_output_tokens = count(path, number, values, "num_output_tokens", 0)
        if num_output_tokens == 0:
            continue
        requests.append(
            TraceRequest(
                request_id=str(values["request_id"]),
                arrival_s=seconds(path, number, values, "arrival_s"),
                num_prompt_tokens=count(path, number, values, "num_prompt_tokens", 1),
                num_output_tokens=num_output_tokens,
                hash_ids=_ids(path, number, values),
                session_id=values.get("session_id"),
            )
        )
    return Trace(name=path.stem, requests=in_order(requests), hash_block_size=block_size)


def _ids(path: Path, number: int, values: dict[str, Any]) -> tuple[int, ...]:
    """63 bits of every key: a number that every store of block ids can hold."""
    try:
        return tuple(int(key[:KEY_HEX_DIGITS], 16) >> 1 for key in values["block_keys"])
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path.name} line {number} has unreadable block_keys ({error!r}).") from error
