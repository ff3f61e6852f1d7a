"""``kvasir calibrate``: find out which heads of a model need the whole context, and write it down as a head profile."""

from pathlib import Path
from typing import Annotated

import typer

from kvasir.cli.console import print_note
from kvasir.cli.progress import progress_bars


def run(
    model: Annotated[str, typer.Argument(help="'demo', a folder, a .gguf file or a Hugging Face id.")] = "demo",
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", help="Plain text to measure damage on; repeat. [default: made-up prose]"),
    ] = None,
    budget: Annotated[
        float, typer.Option("--budget", help="KV bytes at --context tokens, as a share of the whole cache in 16 bits.")
    ] = 0.35,
    output: Annotated[
        Path | None, typer.Option("--output", help="The profile. [default: the model's name + .profile.json, here]")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", min=64, help="Tokens of a sequence the budget is for. [default: the model's]"),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-cache-dtype", help="A format to choose from, int8 or k=int8,v=int4; repeat. [default: int8]"
        ),
    ] = None,
    sinks: Annotated[int, typer.Option("--sinks", min=0, help="First tokens that windowed heads keep.")] = 4,
    window: Annotated[int, typer.Option("--window", min=1, help="Last tokens that windowed heads keep.")] = 1024,
    induction_share: Annotated[
        float, typer.Option("--induction-share", min=0.0, max=1.0, help="Share of KV heads kept whole for copying.")
    ] = 0.14,
    echo_share: Annotated[
        float, typer.Option("--echo-share", min=0.0, max=1.0, help="Share of KV heads kept whole for finding repeats.")
    ] = 0.045,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads. [default: all cores]")] = None,
) -> None:
    """Two passes over a few thousand tokens with the weights in fp32: minutes for a small model on two cores."""
    from kvasir.cli.calibrate_model import calibrate_model
    from kvasir.cli.profile_print import print_profile
    from kvasir.compression.calibrate import Recipe
    from kvasir.compression.formats import parse_formats

    wanted = {} if context is None else {"context": context}
    recipe = Recipe(
        budget=budget,
        formats=tuple(parse_formats(name) for name in formats or ["int8"]),
        sinks=sinks,
        window=window,
        induction_share=induction_share,
        echo_share=echo_share,
        **wanted,
    )
    with progress_bars() as progress:
        profile = calibrate_model(model, text or [], recipe, output, threads, progress)
    print_profile(profile)
    print_note(f"head profile: {profile.path} (use it with --head-profile {profile.path})")
