"""``kvasir serve``: the OpenAI-compatible server, and the one table that says what it serves with."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvasir.cli.console import print_json, print_table
from kvasir.cli.engine_options import engine_options
from kvasir.cli.options import OptionGroup, option, with_groups
from kvasir.cli.progress import progress_bars
from kvasir.engine.byte_size import format_bytes
from kvasir.engine.config import EngineConfig
from kvasir.server.config import ServerConfig

if TYPE_CHECKING:
    from kvasir.server.launch import ServerInfo

_SERVER_OPTIONS = (
    option("host", str, "--host", help="Address to listen on. [default: 127.0.0.1]"),
    option("port", int, "--port", help="Port to listen on; 0 takes a free one. [default: 8000]"),
    option("served_model_name", str, "--served-model-name", help="Name that clients use. [default: the model's own]"),
    option("api_key", str, "--api-key", envvar="KVASIR_API_KEY", help="Key that clients must send. [default: none]"),
    option("max_request_bytes", int, "--max-request-bytes", help="Largest request body. [default: 16777216]"),
    option(
        "stall_timeout_s", float, "--stall-timeout", help="Seconds without a step until health is red. [default: 60]"
    ),
    option("shutdown_grace_s", float, "--shutdown-grace", help="Seconds the engine gets to end. [default: 5]"),
    option("quality_report", str, "--quality-report", metavar="FILE", help="Serve only what this report vouches for."),
    option(
        "ignore_quality_report", bool, "--ignore-quality-report", help="Serve whatever the report says. [default: off]"
    ),
    option("access_log", bool, "--access-log/--no-access-log", help="Log every request. [default: off]"),
)


def _server_config(given: Mapping[str, Any]) -> ServerConfig:
    return ServerConfig(**{name: value for name, value in given.items() if value is not None})


@with_groups(engine=engine_options(), server=OptionGroup(parameters=_SERVER_OPTIONS, build=_server_config))
def run(
    engine: EngineConfig,
    server: ServerConfig,
    as_json: Annotated[bool, typer.Option("--json", help="Print the configuration as JSON when ready.")] = False,
) -> None:
    from kvasir.server.launch import run_server

    show = _show_json if as_json else _show
    with ExitStack() as drawing:
        progress = drawing.enter_context(progress_bars())

        def ready(info: "ServerInfo") -> None:
            drawing.close()  # nothing is waited for any more, and the table wants the terminal for itself
            show(info)

        run_server(engine, server, on_progress=progress, on_ready=ready)


def _show(info: "ServerInfo") -> None:
    capacity = info.capacity
    rows = [[f"--{name.replace('_', '-')}", value] for name, value in info.effective_config.items()]
    print_table("Effective configuration", ("flag", "value"), rows)
    print(
        f"KV cache: {_blocks(capacity.num_blocks)} blocks of {capacity.block_size} tokens "
        f"= {capacity.num_tokens:,} tokens = {capacity.num_sequences:.1f} sequences of {info.max_model_len:,} tokens, "
        f"{format_bytes(capacity.num_bytes)}"
    )
    print(f"Serving {info.model_name} at {info.url}/v1   (Ctrl-C stops)\n")
    print(f"Try it:\n  {info.curl}\n", flush=True)


def _show_json(info: "ServerInfo") -> None:
    import msgspec

    print_json(msgspec.to_builtins(info))


def _blocks(num_blocks: tuple[int, ...]) -> str:
    """One number per group of layers that share a retention rule."""
    return " + ".join(f"{count:,}" for count in num_blocks)
