"""``kvasir calibrate``: find out which heads of a model need the whole context, and write it down as a head profile."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.calibrate_options import recipe_options
from kvasir.cli.console import print_note
from kvasir.cli.options import with_groups
from kvasir.cli.progress import progress_bars

if TYPE_CHECKING:
    from kvasir.compression.calibrate import Recipe


@with_groups(recipe=recipe_options())
def run(
    recipe: "Recipe",
    model: Annotated[str, typer.Argument(help="'demo', a folder, a .gguf file or a Hugging Face id.")] = "demo",
    text: Annotated[
        list[Path] | None, typer.Option("--text", help="Plain text to measure on; repeat. [default: made-up prose]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="The profile. [default: NAME.profile.json, here]")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads. [default: all cores]")] = None,
) -> None:
    """Two passes over a few thousand tokens with the weights in fp32: a minute for a small model on two cores."""
    from kvasir.cli.calibrate_model import calibrate_model
    from kvasir.cli.profile_print import print_profile

    with progress_bars() as progress:
        profile = calibrate_model(model, text or [], recipe, output, threads, progress)
    print_profile(profile)
    print_note(f"head profile: {profile.path} (use it with --head-profile {profile.path})")
