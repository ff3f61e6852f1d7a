"""Where the load goes: the address, the route, and what every request to it carries."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from kvasir import __version__
from kvasir.core.errors import ConfigError
from kvasir.loadtest.connection import Address

Message = dict[str, str]


class Api(Enum):
    """``value`` is what ``vllm bench serve`` calls the backend."""

    COMPLETIONS = "openai"
    CHAT = "openai-chat"

    @property
    def route(self) -> str:
        return _ROUTES[self]


_ROUTES = {Api.COMPLETIONS: "/completions", Api.CHAT: "/chat/completions"}
_RESERVED = frozenset({"prompt", "messages", "stream"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """What the bodies of all requests share.  ``ignores_eos`` is vLLM's extra field: answers get their full length.

    ``temperature`` None leaves it to the server; ``extra`` goes into every body as it is and may override the rest.
    """

    temperature: float | None = 0.0
    ignores_eos: bool = False
    asks_usage: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := sorted(_RESERVED & self.extra.keys()):
            raise ConfigError(f"The extra body fields may not hold {taken[0]!r}, which the load test sets itself.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server.  ``root`` is the path before /v1, where /metrics is."""

    address: Address
    root: str
    api: Api
    api_key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_url(cls, url: str, api: Api, api_key: str | None = None, headers: Sequence[str] = ()) -> Self:
        """``http://host:port``, with or without ``/v1`` at the end; ``headers`` like ``"Name: value"``.
        Raises ``ConfigError``."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is not the address of a server ({error}).") from error
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"{url!r} is not the address of a server; write it like http://127.0.0.1:8000.")
        is_tls = parts.scheme == "https"
        return cls(
            address=Address(
                host=host,
                port=port or (443 if is_tls else 80),
                tls=ssl.create_default_context() if is_tls else None,
            ),
            root=parts.path.rstrip("/").removesuffix("/v1"),
            api=api,
            api_key=api_key,
            headers=tuple(_header(text) for text in headers),
        )

    @property
    def url(self) -> str:
        scheme = "https" if self.address.tls else "http"
        return f"{scheme}://{self.address}{self.root}"

    def get(self, path: str) -> bytes:
        """A GET request for ``path`` under the root."""
        return self._head("GET", path) + b"\r\n"

    def command(self, path: str) -> bytes:
        """A POST without a body to ``path`` under the root."""
        return self._head("POST", path) + b"Content-Length: 0\r\n\r\n"

    def post(self, body: bytes) -> bytes:
        """A POST of ``body`` to the route that generates."""
        head = self._head("POST", f"/v1{self.api.route}")
        return head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def _head(self, method: str, path: str) -> bytes:
        lines = [
            f"{method} {self.root}{path} HTTP/1.1",
            f"Host: {self.address}",
            f"User-Agent: kvasir-bench/{__version__}",
            "Accept: */*",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyMaker:
    """Writes request bodies for one model."""

    model: str
    api: Api
    options: BodyOptions

    def body(self, prompt: str | Sequence[int] | Sequence[Message], num_output_tokens: int | None) -> bytes:
        """``prompt``: text or token ids, or messages on the chat route.  None leaves the length to the server."""
        options = self.options
        fields: dict[str, Any] = {"model": self.model, "stream": True}
        fields["messages" if self.api is Api.CHAT else "prompt"] = prompt
        if num_output_tokens is not None:
            fields["max_tokens"] = num_output_tokens
        if options.temperature is not None:
            fields["temperature"] = options.temperature
        if options.ignores_eos:
            fields["ignore_eos"] = True
        if options.asks_usage:
            fields["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(fields | dict(options.extra))


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or any(ord(character) < 32 or ord(character) > 255 for character in text):
        raise ConfigError(f"{text!r} is not a header; write it like 'X-Tenant: acme'.")
    return name.strip(), value.strip()
