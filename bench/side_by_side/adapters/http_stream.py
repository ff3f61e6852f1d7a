"""A small HTTP client for streams of server-sent events: stamps each line as it arrives and reads it afterwards."""

import asyncio
import json
import time
from typing import Any

HOST = "127.0.0.1"
LARGEST_LINE = 1 << 22


class HttpFailure(Exception):
    """The server answered with something other than 200."""


async def get(port: int, path: str) -> bytes:
    """The body of a plain GET; raises ``OSError`` while nobody listens and ``HttpFailure`` for a refusal."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=LARGEST_LINE)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readline()
        rest = await reader.read()
    finally:
        writer.close()
    if b" 200" not in head:
        raise HttpFailure(f"{path}: {head.decode(errors='replace').strip()}")
    return rest.partition(b"\r\n\r\n")[2]


async def stream(port: int, path: str, body: dict[str, Any]) -> tuple[float, list[tuple[float, dict[str, Any]]]]:
    """When the request was sent, and every event with its time of arrival.  Raises ``HttpFailure``."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(HOST, port, limit=LARGEST_LINE)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    raw: list[tuple[float, bytes]] = []
    try:
        sent_s = time.monotonic()
        writer.write(head.encode() + data)
        status = await reader.readline()
        while line := await reader.readline():
            if line.startswith(b"data: ") or b" 200" not in status:
                raw.append((time.monotonic(), line))
            if line.startswith(b"data: [DONE]"):
                break
    finally:
        writer.close()
    if b" 200" not in status:
        said = b"".join(line for _, line in raw).decode(errors="replace")
        raise HttpFailure(f"{path}: {status.decode(errors='replace').strip()} {said[-400:]}")
    return sent_s, [(time_s, json.loads(line[6:])) for time_s, line in raw if not line.startswith(b"data: [DONE]")]
