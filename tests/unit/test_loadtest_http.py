"""The client's own HTTP and event parsing: any bytes, cut anywhere, give the same answer; what is broken is said."""

import itertools
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.core.errors import ConfigError
from kvasir.loadtest.http_response import HttpError, ResponseParser
from kvasir.loadtest.sse import EventParser
from kvasir.loadtest.target import Api, BodyMaker, BodyOptions, Target

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n7;name=value\r\n, world\r\n0\r\nTrailer: x\r\n\r\n"
)


def parse(pieces: list[bytes]) -> tuple[ResponseParser, bytes]:
    body = bytearray()
    parser = ResponseParser(body.extend)
    for piece in pieces:
        parser.feed(piece)
    return parser, bytes(body)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(marks)]


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_a_chunked_response_cut_anywhere(places: list[int]) -> None:
    parser, body = parse(cut(CHUNKED, places))
    assert (parser.status, body, parser.is_done, parser.can_reuse) == (200, b"hello, world", True, True)
    assert parser.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize(
    ("head", "rest", "body", "can_reuse"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\n", b"abc", b"abc", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", b"", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n", b"abc", b"abc", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", b"abc", b"abc", False),
    ],
)
def test_other_framings(head: bytes, rest: bytes, body: bytes, can_reuse: bool) -> None:
    parser, got = parse([head, rest])
    assert (got, parser.is_done, parser.can_reuse) == (body, True, can_reuse)


def test_a_body_until_the_end() -> None:
    parser, body = parse([b"HTTP/1.1 200 OK\r\n\r\nab", b"c"])
    assert (body, parser.is_done) == (b"abc", False)
    parser.feed_end()
    assert parser.is_done and not parser.can_reuse


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "before the response began"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "in the middle"),
    ],
)
def test_an_early_end_is_an_error(data: bytes, message: str) -> None:
    parser, _ = parse([data])
    with pytest.raises(HttpError, match=message):
        parser.feed_end()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "which is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", "Content-Length of '-4'"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk of size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabXX\r\n", "followed by"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, "head is longer"),
    ],
)
def test_what_is_not_http_is_said(data: bytes, message: str) -> None:
    with pytest.raises(HttpError, match=message):
        parse([data])


EVENTS = b': hello\n\ndata: {"a": 1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\nid: 7\n\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_events_cut_anywhere(places: list[int]) -> None:
    parser = EventParser()
    events = [event for piece in cut(EVENTS, places) for event in parser.feed(piece)]
    assert events == [b'{"a": 1}', b"two\nlines", b"[DONE]"]


@pytest.mark.parametrize(
    ("url", "shown", "root"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000", ""),
        ("http://localhost/v1/", "http://localhost:80", ""),
        ("https://[::1]:7/proxy/v1", "https://[::1]:7/proxy", "/proxy"),
    ],
)
def test_addresses(url: str, shown: str, root: str) -> None:
    target = Target.from_url(url, Api.CHAT, api_key="k", headers=["X-Tenant:  acme "])
    assert (target.url, target.root) == (shown, root)
    assert isinstance(target.address.tls, ssl.SSLContext) == url.startswith("https")
    head, _, body = target.post(b"{}").partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == f"POST {root}/v1/chat/completions HTTP/1.1"
    assert {f"Host: {target.address}", "X-Tenant: acme", "Authorization: Bearer k", "Content-Length: 2"} <= set(lines)
    assert body == b"{}"
    assert target.get("/metrics").startswith(f"GET {root}/metrics HTTP/1.1\r\n".encode())


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a:b", "http://a:70000"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="address of a server"):
        Target.from_url(url, Api.CHAT)


@pytest.mark.parametrize("header", ["nonsense", ": x", "A: b\r\nC: d"])
def test_what_is_no_header(header: str) -> None:
    with pytest.raises(ConfigError, match="not a header"):
        Target.from_url("http://a", Api.CHAT, headers=[header])


def test_bodies() -> None:
    options = BodyOptions(temperature=None, ignores_eos=True, asks_usage=False, extra={"max_tokens": 9, "top_p": 0.5})
    body = BodyMaker(model="m", api=Api.COMPLETIONS, options=options).body((1, 2), 5)
    assert body == b'{"model":"m","stream":true,"prompt":[1,2],"max_tokens":9,"ignore_eos":true,"top_p":0.5}'
    chat = BodyMaker(model="m", api=Api.CHAT, options=BodyOptions()).body([{"role": "user", "content": "hi"}], None)
    assert chat == (
        b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"temperature":0.0,'
        b'"stream_options":{"include_usage":true}}'
    )
    with pytest.raises(ConfigError, match="'stream'"):
        BodyOptions(extra={"stream": False})
