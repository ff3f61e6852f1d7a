"""Server-sent events: the data of each event, from bytes as they come."""


class EventParser:
    """``feed`` gives the data of every event that the bytes complete; comments and other fields are passed over.

    Lines may end in LF or CRLF; data lines of one event are joined by LF.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing of an unfinished event is held."""
        return not self._rest.strip() and not self._lines

    def feed(self, data: bytes) -> list[bytes]:
        events = []
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._lines.append(line[5:].removeprefix(b" "))
            elif not line and self._lines:
                events.append(b"\n".join(self._lines))
                self._lines = []
        return events
