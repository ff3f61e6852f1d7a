"""Mooncake JSON lines: timestamp (ms), input_length, output_length, hash_ids.  Read, and written by ``--emit``.

Source of the format: Mooncake (FAST'25), github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

import json
from pathlib import Path
from typing import Any

from kvasir.workload.traces.lines import count, json_lines, seconds
from kvasir.workload.traces.trace import Trace, TraceError, TraceRequest, in_order

HASH_BLOCK_SIZE = 512
"""What the published traces use; a file cannot say."""


def read_mooncake(path: Path, hash_block_size: int = HASH_BLOCK_SIZE) -> Trace:
    """One request a line.  Raises ``TraceError`` when a line has more ids than its prompt has blocks."""
    requests = []
    for number, values in json_lines(path):
        num_prompt_tokens = count(path, number, values, "input_length", 1)
        hash_ids = check_ids(path, number, values, num_prompt_tokens, hash_block_size)
        requests.append(
            TraceRequest(
                request_id=str(number - 1),
                arrival_s=seconds(path, number, values, "timestamp") / 1000.0,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=max(1, count(path, number, values, "output_length", 0)),
                hash_ids=hash_ids,
            )
        )
    has_ids = any(request.hash_ids for request in requests)
    return Trace(name=path.stem, requests=in_order(requests), hash_block_size=hash_block_size if has_ids else 0)


def check_ids(
    path: Path, number: int, values: dict[str, Any], num_prompt_tokens: int, hash_block_size: int
) -> tuple[int, ...]:
    """``hash_ids`` of a line: whole numbers, no more than the prompt has blocks."""
    ids = values.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(hash_id) is int for hash_id in ids):
        raise TraceError(f"{path.name} line {number} has hash_ids that are not a list of whole numbers.")
    if len(ids) > -(-num_prompt_tokens // hash_block_size):
        raise TraceError(
            f"{path.name} line {number} has {len(ids)} hash_ids, but its {num_prompt_tokens} tokens make "
            f"{-(-num_prompt_tokens // hash_block_size)} blocks of {hash_block_size}; say how large its blocks are "
            "with --hash-block-size."
        )
    return tuple(ids)


def write_mooncake(trace: Trace, path: Path) -> None:
    """Every request with its ids; what the format has no room for (sessions, think times) is left out."""
    with path.open("w", encoding="utf-8") as file:
        for request in trace.requests:
            line = {
                "timestamp": round(request.arrival_s * 1000.0),
                "input_length": request.num_prompt_tokens,
                "output_length": request.num_output_tokens,
                "hash_ids": list(request.hash_ids),
            }
            file.write(json.dumps(line) + "\n")
