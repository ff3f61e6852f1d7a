"""The ``kvasir`` command: finds the command, runs it, and turns a refusal into one sentence and exit status 1."""

import os
import sys
from typing import Annotated

import typer

import kvasir
from kvasir.cli import chat, demo, generate, pull, serve, version
from kvasir.core.errors import KvasirError

# Plain help text: drawing it with rich would triple the time that ``kvasir --help`` takes.
app = typer.Typer(
    name="kvasir",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for module in (serve, chat, generate, pull, demo, version):
    app.command(name=module.NAME, help=module.SUMMARY)(module.run)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"kvasir {kvasir.__version__}")
        raise typer.Exit


@app.callback()
def root(
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
        app()
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
