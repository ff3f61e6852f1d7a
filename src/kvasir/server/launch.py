"""From two configurations to a serving process and back: sockets, start, ready, signals, orderly end."""

import asyncio
import contextlib
import json
import shlex
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from prometheus_client import disable_created_metrics

from kvasir.claims.quality_report import QualityReport, Served
from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress
from kvasir.engine.config import EngineConfig
from kvasir.server.app import make_app
from kvasir.server.config import ServerConfig
from kvasir.server.engine_client import EngineClient
from kvasir.server.messages import Capacity, Ready
from kvasir.server.state import ServerState
from kvasir.text.tokenizer import Tokenizer

Result = TypeVar("Result")

_KEEP_ALIVE_S = 75
"""Longer than clients pool idle connections, so that they close first and never meet a closing one."""
_DRAIN_S = 5
"""Answers in flight are ended at once; this bounds how long writing those ends may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What a person wants to know when the server is ready.  ``curl`` is a command that works as it stands."""

    url: str
    model_name: str
    effective_config: dict[str, str]
    capacity: Capacity
    max_model_len: int
    engine_pid: int
    curl: str


def run_server(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    on_progress: Progress = no_progress,
    on_ready: Callable[[ServerInfo], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then return; for the main thread of a process that has nothing else to do.

    Raises ``ConfigError`` or ``ModelError`` when it cannot start (a port in use is found before the model is loaded),
    ``ConfigError`` when the quality report does not vouch for what would be served, and ``EngineDeadError`` when the
    engine dies while loading.  No process and no file is left behind.
    """
    report = _quality_report(server_config)
    listener = _bind(server_config)
    disable_created_metrics()  # a series of start times beside every counter: nobody's dashboard reads them
    try:
        asyncio.run(_serve(engine_config, server_config, listener, report, on_progress, on_ready))
    finally:
        listener.close()


def _quality_report(config: ServerConfig) -> QualityReport | None:
    """The report that what is served must agree with; read before anything is loaded."""
    if config.quality_report is None or config.ignore_quality_report:
        return None
    return QualityReport.read(Path(config.quality_report))


def _served(ready: Ready) -> Served:
    return Served(
        model_digest=ready.model_digest,
        layout_digest=ready.layout_digest,
        weight_dtype=ready.effective_config["weight_dtype"],
        kv_eviction=ready.effective_config["kv_eviction"],
        kv_sparse_read=ready.effective_config["kv_sparse_read"],
    )


def _bind(config: ServerConfig) -> socket.socket:
    """A bound socket that does not listen yet: until the server is ready, clients are turned away at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise _cannot_listen(config, error) from error
    return listener


def _cannot_listen(config: ServerConfig, error: OSError) -> ConfigError:
    return ConfigError(
        f"Cannot listen on {config.host} port {config.port} ({error.strerror or error}); "
        "choose another --host or --port (0 takes a free port)."
    )


async def _serve(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    listener: socket.socket,
    report: QualityReport | None,
    on_progress: Progress,
    on_ready: Callable[[ServerInfo], None] | None,
) -> None:
    asked_to_stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, asked_to_stop.set)
    engine = await _unless_set(
        asked_to_stop,
        EngineClient.start(
            engine_config,
            served_model_name=server_config.served_model_name,
            stall_timeout_s=server_config.stall_timeout_s,
            on_progress=on_progress,
        ),
    )
    if engine is None:
        return
    try:
        if report is not None:
            report.check(_served(engine.ready))
        state = make_state(replace(server_config, port=listener.getsockname()[1]), engine)
        server = _Server(_uvicorn_config(state))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started and on_ready is not None:
            on_ready(_describe(state, listener))
        await _unless_set(asked_to_stop, asyncio.wait({serving}))
        engine.stop_serving()
        server.should_exit = True
        await serving
    except OSError as error:
        raise _cannot_listen(server_config, error) from error
    finally:
        await engine.close(server_config.shutdown_grace_s)


async def _unless_set(event: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of ``work``, or None when ``event`` is set first: ``work`` is then cancelled and waited for."""
    working = asyncio.create_task(work)
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait({working})
    return None


def make_state(config: ServerConfig, engine: EngineClient) -> ServerState:
    """Load the tokenizer of the model that the engine serves, and publish the configuration."""
    effective = engine.ready.effective_config | config.effective()
    engine.metrics.started(engine.ready.capacity, effective)
    return ServerState(
        config=config,
        engine=engine,
        tokenizer=Tokenizer.from_folder(Path(engine.ready.model_path)),
        effective_config=effective,
    )


class _Server(uvicorn.Server):
    """Uvicorn, but the signals are ours: it would end the process by the signal it caught instead of returning."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _uvicorn_config(state: ServerState) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(state),
        lifespan="off",
        ws="none",
        log_level="info" if state.config.access_log else "warning",
        access_log=state.config.access_log,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
    )


def _describe(state: ServerState, listener: socket.socket) -> ServerInfo:
    host, port = listener.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host) or str(host)
    url = f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
    ready = state.engine.ready
    return ServerInfo(
        url=url,
        model_name=state.model_name,
        effective_config=state.effective_config,
        capacity=ready.capacity,
        max_model_len=ready.max_model_len,
        engine_pid=state.engine.engine_pid,
        curl=_curl(url, state),
    )


def _curl(url: str, state: ServerState) -> str:
    body = {
        "model": state.model_name,
        "messages": [{"role": "user", "content": "What is a prefix cache?"}],
        "max_tokens": 64,
    }
    key = "" if state.config.api_key is None else ' -H "Authorization: Bearer $KVASIR_API_KEY"'
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d {data}"
