"""A client that reads slowly keeps nobody else waiting and loses nothing."""

import json
import socket

from live_server import LiveServer


def test_the_engine_goes_on_and_the_reader_gets_it_all(live_server: LiveServer) -> None:
    """Over 100 KB of stream into a 4 KiB window: the engine is done long before the first byte is read."""
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": 60,
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 20,
            "stream": True,
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    ended = live_server.metric("vllm:request_success_total", finished_reason="length")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", live_server.port))
        connection.sendall(head.encode() + body)
        live_server.wait_for(
            lambda: live_server.metric("vllm:request_success_total", finished_reason="length") == ended + 1, 60
        )
        live_server.wait_idle()
        assert live_server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    text = received.decode()
    assert len(text) > 80_000 and text.rstrip("\r\n0").endswith("data: [DONE]")
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    entries = [
        entry
        for event in events
        for choice in json.loads(event)["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert len(entries) == 60
