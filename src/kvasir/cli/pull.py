"""``kvasir pull``: get a model ready, so that later commands start at once."""

from typing import Annotated

import typer

from kvasir.cli.console import print_json
from kvasir.cli.progress import progress_bars


def run(
    model: Annotated[str, typer.Argument(help="'demo', a folder, a .gguf file or a Hugging Face id.")] = "demo",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    from kvasir.models.resolve import resolve_model

    with progress_bars() as progress:
        folder = resolve_model(model, progress)
    if as_json:
        print_json({"name": folder.name, "path": str(folder.path)})
    else:
        print(folder.path)
