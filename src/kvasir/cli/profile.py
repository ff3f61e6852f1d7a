"""``kvasir profile``: look at a head profile."""

from pathlib import Path
from typing import Annotated

import typer

from kvasir.cli.console import print_json, print_note

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@group.callback()
def _group() -> None:
    """Look at head profiles, which `kvasir calibrate` writes."""


@group.command()
def show(
    file: Annotated[str, typer.Argument(help="A profile, or 'default': the embedded model's.")] = "default",
    png: Annotated[Path | None, typer.Option("--png", help="Draw the map and the scores into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print which heads keep what: a line per KV head, a column per layer."""
    from kvasir.cli.profile_print import print_profile
    from kvasir.compression.profile_file import load_profile
    from kvasir.compression.profile_json import profile_to_json

    profile = load_profile(file)
    if png is not None:
        from kvasir.cli.profile_plot import draw_profile

        draw_profile(profile, png)
        print_note(f"drawn: {png}")
    if as_json:
        print_json(profile_to_json(profile))
    else:
        print_profile(profile)
