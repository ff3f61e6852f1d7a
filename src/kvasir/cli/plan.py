"""``kvasir plan``: what a model needs on what hardware, before it is bought: tables, JSON, or an HTML report."""

from typing import Annotated

import typer

from kvasir.cli.console import print_json, print_note, print_table
from kvasir.cli.options import with_groups
from kvasir.cli.plan_options import (
    LOAD,
    MACHINE,
    OUTPUT,
    OWN,
    RUN,
    Asked,
    LoadAsked,
    MachineAsked,
    OutputAsked,
    OwnAsked,
    RunAsked,
)
from kvasir.core.errors import ConfigError

_Model = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A folder, a config.json, a .gguf file, a built-in name or owner/name id."),
]


@with_groups(run_asked=RUN, own_asked=OWN, load_asked=LOAD, machine_asked=MACHINE, output=OUTPUT)
def run(
    model: _Model = None,
    run_asked: RunAsked = RunAsked(),  # replaced by what the options say
    own_asked: OwnAsked = OwnAsked(),
    load_asked: LoadAsked = LoadAsked(),
    machine_asked: MachineAsked = MachineAsked(),
    output: OutputAsked = OutputAsked(),
) -> None:
    if output.list_models or output.list_hardware:
        _print_lists(output)
        return
    if model is None:
        raise ConfigError("Name a model: a folder, a config.json, a .gguf file, a built-in name or an owner/name id.")
    from kvasir.cli.plan_request import build_plan

    plan = build_plan(Asked(model=model, run=run_asked, own=own_asked, load=load_asked, machine=machine_asked))
    if output.html is not None:
        from kvasir.planner.report_html import write_html

        write_html(plan, output.html)
        print_note(f"written: {output.html}")
    if output.as_json:
        from kvasir.planner.report_json import plan_json

        print_json(plan_json(plan))
    elif output.html is None:
        from kvasir.cli.plan_print import print_plan

        print_plan(plan)


def _print_lists(output: OutputAsked) -> None:
    from kvasir.hardware.cards import device_cards
    from kvasir.planner.sources import model_cards

    models, hardware = output.list_models, output.list_hardware
    if output.as_json:
        named = {"models": [entry["name"] for entry in model_cards()]} if models else {}
        cards = {"hardware": [card.name for card in device_cards()]} if hardware else {}
        print_json(named | cards)
        return
    if models:
        rows = [(entry["name"], ", ".join(entry["aliases"])) for entry in model_cards()]
        print_table("Built-in models", ("name", "also"), rows)
    if hardware:
        rows = [
            (
                card.name,
                card.kind.value,
                f"{card.memory_gib:.1f} GiB ({card.memory_basis.value})",
                f"{card.bandwidth_bytes_per_s / 1e9:,.0f} GB/s",
                f"{card.bf16_flops / 1e12:,.3g}",
                f"{card.fp8_flops / 1e12:,.3g}" if card.fp8_flops else "-",
                "-" if card.price_per_hour_usd is None else f"{card.price_per_hour_usd:.3f}",
                card.price_basis.value,
                f"{card.source}, {card.date}",
            )
            for card in device_cards()
        ]
        columns = ("name", "kind", "memory", ">bandwidth", ">bf16 TFLOPS", ">fp8", ">$/h", "price", "source")
        print_table("Known devices", columns, rows)
