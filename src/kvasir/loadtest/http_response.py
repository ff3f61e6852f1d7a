"""Reads one HTTP/1.1 response from bytes as they come (RFC 9112); knows no sockets."""

from collections.abc import Callable
from enum import Enum, auto

_MAX_HEAD_BYTES = 64 * 1024


class HttpError(Exception):
    """What the other side sent is not an HTTP/1.1 response, or stops in the middle of one."""


class _State(Enum):
    HEAD = auto()
    CHUNK_SIZE = auto()
    CHUNK_DATA = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    LENGTH = auto()
    UNTIL_CLOSED = auto()
    DONE = auto()


class ResponseParser:
    """``feed`` bytes in pieces of any size; the body goes to ``on_body`` without its framing, as soon as it is there.

    ``status`` and ``headers`` (names in lower case) are set before the first call of ``on_body``.
    """

    def __init__(self, on_body: Callable[[bytes], None]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._on_body = on_body
        self._buffer = bytearray()
        self._state = _State.HEAD
        self._num_left = 0
        """Bytes of the body (or of the chunk) still to come."""
        self._can_reuse = False
        self._steps: dict[_State, Callable[[], bool]] = {
            _State.HEAD: self._read_head,
            _State.CHUNK_SIZE: self._read_chunk_size,
            _State.CHUNK_DATA: self._read_data,
            _State.CHUNK_END: self._read_chunk_end,
            _State.TRAILERS: self._read_trailers,
            _State.LENGTH: self._read_data,
            _State.UNTIL_CLOSED: self._read_rest,
        }

    @property
    def is_done(self) -> bool:
        return self._state is _State.DONE

    @property
    def can_reuse(self) -> bool:
        """Whether the connection may carry another request after this response."""
        return self.is_done and self._can_reuse and not self._buffer

    def feed(self, data: bytes) -> None:
        """Raises ``HttpError``."""
        self._buffer += data
        while self._state is not _State.DONE and self._steps[self._state]():
            pass

    def feed_end(self) -> None:
        """The other side closed.  Raises ``HttpError`` when that cuts the response off."""
        if self._state is _State.UNTIL_CLOSED:
            self._state = _State.DONE
        elif self._state is not _State.DONE:
            where = "before the response began" if self._is_untouched else "in the middle of the response"
            raise HttpError(f"the server closed the connection {where}")

    @property
    def _is_untouched(self) -> bool:
        return self._state is _State.HEAD and not self._buffer

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise HttpError(f"the response's head is longer than {_MAX_HEAD_BYTES} bytes")
            return False
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not code.isdigit():
            raise HttpError(f"the server answered {lines[0][:80]!r}, which is not HTTP/1.1")
        self.headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status = int(code)
        if self.status >= 200:  # 1xx are remarks before the response
            self._begin_body(version)
        return True

    def _begin_body(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self._can_reuse = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
        if self.status in (204, 304):
            self._state = _State.DONE
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = _State.CHUNK_SIZE
        elif (length := self.headers.get("content-length")) is not None:
            if not length.isdigit():
                raise HttpError(f"the response has a Content-Length of {length!r}")
            self._num_left = int(length)
            self._state = _State.LENGTH if self._num_left else _State.DONE
        else:
            self._can_reuse = False
            self._state = _State.UNTIL_CLOSED

    def _read_chunk_size(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        try:
            self._num_left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise HttpError(f"the response has a chunk of size {line[:40]!r}") from None
        self._state = _State.CHUNK_DATA if self._num_left else _State.TRAILERS
        return True

    def _read_data(self) -> bool:
        if not self._buffer:
            return False
        part = bytes(self._buffer[: self._num_left])
        del self._buffer[: self._num_left]
        self._num_left -= len(part)
        if self._num_left == 0:
            self._state = _State.CHUNK_END if self._state is _State.CHUNK_DATA else _State.DONE
        self._on_body(part)
        return True

    def _read_chunk_end(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        if line:
            raise HttpError(f"a chunk of the response is followed by {line[:40]!r}")
        self._state = _State.CHUNK_SIZE
        return True

    def _read_trailers(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        if not line:
            self._state = _State.DONE
        return True

    def _read_rest(self) -> bool:
        if not self._buffer:
            return False
        part = bytes(self._buffer)
        self._buffer.clear()
        self._on_body(part)
        return True

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise HttpError(f"a line of the response's framing is longer than {_MAX_HEAD_BYTES} bytes")
            return None
        line = bytes(self._buffer[:end]).rstrip(b"\r")
        del self._buffer[: end + 1]
        return line
