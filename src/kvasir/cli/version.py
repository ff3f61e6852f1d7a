"""``kvasir version``: what is installed."""

import platform
from typing import Annotated

import typer

import kvasir
from kvasir.cli.console import print_json, print_table

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def run(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    from importlib import metadata

    versions = {"kvasir": kvasir.__version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in _PACKAGES}
    if as_json:
        print_json(versions)
    else:
        print_table("", (), [list(item) for item in versions.items()])
