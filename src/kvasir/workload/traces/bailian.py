"""Bailian (Qwen) JSON lines: chat_id, parent_chat_id, timestamp (s), lengths, and ids of 16-token blocks.

Source of the format: "KVCache cache in the wild" (ATC'25, arXiv 2506.02634), the repository
qwen-bailian-usagetraces-anon of alibaba-edu.
"""

from pathlib import Path

from kvasir.workload.traces.lines import count, json_lines, seconds
from kvasir.workload.traces.mooncake import check_ids
from kvasir.workload.traces.trace import Trace, TraceRequest, in_order

HASH_BLOCK_SIZE = 16


def read_bailian(path: Path) -> Trace:
    """A chat and everything that descends from it is one session.  Arrivals stay as recorded."""
    requests = []
    roots: dict[int, int] = {}
    for number, values in json_lines(path):
        num_prompt_tokens = count(path, number, values, "input_length", 1)
        chat_id = count(path, number, values, "chat_id", 0)
        parent = int(values.get("parent_chat_id", -1))
        roots[chat_id] = roots.get(parent, parent) if parent >= 0 else chat_id
        requests.append(
            TraceRequest(
                request_id=str(chat_id),
                arrival_s=seconds(path, number, values, "timestamp"),
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=max(1, count(path, number, values, "output_length", 0)),
                hash_ids=check_ids(path, number, values, num_prompt_tokens, HASH_BLOCK_SIZE),
                session_id=str(roots[chat_id]),
            )
        )
    return Trace(name=path.stem, requests=in_order(requests), hash_block_size=HASH_BLOCK_SIZE)
