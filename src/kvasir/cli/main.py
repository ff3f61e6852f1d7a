"""The ``kvasir`` command: finds the command, runs it, and turns a refusal into one sentence and exit status 1."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated

import typer

import kvasir
from kvasir.core.errors import KvasirError

COMMANDS = {
    "serve": "Serve a model through the OpenAI API.",
    "chat": "Talk to a model in this terminal.",
    "generate": "Answer a file of requests (JSON lines in, JSON lines out).",
    "pull": "Download and convert a model, and print where it is kept.",
    "demo": "Measure what prefix caching, paging and batching buy here.",
    "plan": "Say what a model needs before it is deployed: memory, devices, dollars, flags.",
    "simulate": "Play recorded traffic on a deployment that need not exist.",
    "bench": "Load-test a server (bench serve), whoever made it.",
    "calibrate": "Find out which heads need the whole context, and write a head profile.",
    "profile": "Look at a head profile (profile show).",
    "quality": "Say what a cheaper KV cache costs on a model, and hold it to limits.",
    "version": "Print the versions of Kvasir and of what it computes with.",
}
_WIDE = {"max_content_width": 120}


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The command line as far as ``arguments`` can call it: only commands named there are imported.

    That keeps ``kvasir --help`` and each command from paying for all the others.
    """
    app = typer.Typer(
        name="kvasir",
        no_args_is_help=True,
        add_completion=False,
        # Plain help text: drawing it with rich would double the time it takes.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_WIDE,
    )
    app.callback()(_root)
    for name, summary in COMMANDS.items():
        command = _load(name) if name in arguments else _not_called
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, help=summary, context_settings=_WIDE)
        else:
            app.command(name=name, help=summary, context_settings=_WIDE)(command)
    return app


def _load(name: str) -> Callable[..., None] | typer.Typer:
    """The command, or the group of commands."""
    module = import_module(f"kvasir.cli.{name}")
    return module.group if hasattr(module, "group") else module.run


def _not_called() -> None:
    """Stands for a command that the arguments do not name: it is listed, and cannot run."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"kvasir {kvasir.__version__}")
        raise typer.Exit


def _root(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="KVASIR_DEBUG", help="Show the whole traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Serve large language models with the KV cache first."""
    if debug:
        os.environ["KVASIR_DEBUG"] = "1"


def main() -> None:
    """Exit status: 0 done, 1 refused or failed (one sentence on stderr), 2 wrong usage, 130 interrupted."""
    try:
        make_app(sys.argv[1:])()
    except KvasirError as error:
        if os.environ.get("KVASIR_DEBUG"):
            raise
        from kvasir.cli.console import print_error

        print_error(str(error))
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output went away (``kvasir ... | head``); point stdout elsewhere so that exit stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
