"""``kvasir quality``: what a cheaper cache costs on your model, as a table, a JSON file, an HTML report and a gate."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvasir.cli.console import print_error, print_note, print_table
from kvasir.cli.engine_options import engine_options
from kvasir.cli.options import OptionGroup, with_groups
from kvasir.cli.progress import progress_bars
from kvasir.core.errors import ConfigError

if TYPE_CHECKING:
    from kvasir.lab.report import QualityRun
    from kvasir.lab.setting import Setting

GATE_FAILED = 3
"""Exit status when a setting does not keep the gate's limits."""

_SHARED_FLAGS = frozenset({"model", "weight_dtype", "max_model_len", "kernels", "threads", "seed"})
_MODEL_ARGUMENT = "model_argument"

_SETTING_HELP = (
    "NAME=flag:value,flag:value with flags of `kvasir serve`, or NAME=http://host:port/v1 of any server; repeat it. "
    "[default: every --kv-cache-dtype that is not the reference's]"
)
_REFERENCE_HELP = "What settings are compared with, as flag:value,flag:value. [default: kv_cache_dtype:bf16]"
_TEXT_HELP = "A text to measure on; repeat it. [default: the files of KVASIR_DATA, else what the model itself writes]"


def _shared_options() -> OptionGroup:
    """Flags that the reference and every setting have in common, as they were written."""
    return OptionGroup(parameters=engine_options(only=_SHARED_FLAGS).parameters, build=_shared_flags)


def _shared_flags(given: Mapping[str, Any]) -> dict[str, str]:
    flags = {name: str(value) for name, value in given.items() if value is not None}
    argument = flags.pop(_MODEL_ARGUMENT, None)
    if argument is not None:
        if "model" in flags:
            raise ConfigError(
                f"The model was given twice, as {argument!r} and as --model {flags['model']!r}; give one."
            )
        flags["model"] = argument
    return flags


@with_groups(shared=_shared_options())
def run(
    shared: dict[str, str],
    setting: Annotated[list[str] | None, typer.Option("--setting", help=_SETTING_HELP)] = None,
    reference: Annotated[str | None, typer.Option("--reference", help=_REFERENCE_HELP)] = None,
    is_full: Annotated[
        bool, typer.Option("--full/--quick", help="Long contexts and many samples, or a look within minutes.")
    ] = False,
    measures: Annotated[
        str | None, typer.Option("--measures", help="Names with commas between them. [default: all]")
    ] = None,
    text: Annotated[list[Path] | None, typer.Option("--text", help=_TEXT_HELP)] = None,
    plugin: Annotated[
        list[Path] | None, typer.Option("--plugin", help="A Python file with a measure of your own; repeat it.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", help="Result file; the HTML report is written beside it.")] = Path(
        "quality.json"
    ),
    html: Annotated[bool, typer.Option("--html/--no-html", help="Write the HTML report (needs plotly).")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result file instead of the table.")] = False,
    max_kl: Annotated[float | None, typer.Option("--max-kl", help="Gate: mean KL, nats/token.")] = None,
    max_copy_gap: Annotated[
        float | None, typer.Option("--max-copy-gap", help="Gate: repeat-copy gap, nats/token.")
    ] = None,
    min_passkey: Annotated[
        float | None, typer.Option("--min-passkey", help="Gate: share of passkeys found, 0 to 1.")
    ] = None,
) -> None:
    """Exit status 3 when a setting does not keep a gate's limit; the limit binds the bad end of the 95 % interval."""
    from kvasir.lab.gate import make_limits
    from kvasir.lab.measure import Size
    from kvasir.lab.opening import DEFAULT_REFERENCE, LabPlan
    from kvasir.lab.registry import MeasureRegistry
    from kvasir.lab.session import QualityPlan, run_quality
    from kvasir.lab.setting import parse_flags
    from kvasir.report.page import check_can_draw

    if html:
        check_can_draw()
    reference_flags = DEFAULT_REFERENCE if reference is None else parse_flags(reference)
    plan = QualityPlan(
        lab=LabPlan(
            settings=_settings(setting or [], reference_flags),
            shared=shared,
            reference=reference_flags,
            texts=tuple(text or ()),
            size=Size.FULL if is_full else Size.QUICK,
        ),
        measures=tuple(name.strip() for name in measures.split(",")) if measures else (),
        limits=make_limits(max_kl=max_kl, max_copy_gap=max_copy_gap, min_passkey=min_passkey),
        registry=MeasureRegistry(tuple(plugin or ())),
    )
    with progress_bars() as progress:
        outcome = run_quality(plan, progress)
    _write(outcome, output, html=html)
    if as_json:
        print(output.read_text(), flush=True)
    else:
        _show(outcome)
    for failure in outcome.gate.failures:
        print_error(f"gate: {failure.message}")
    if not outcome.gate.has_passed:
        raise typer.Exit(GATE_FAILED)


def _settings(written: list[str], reference: Mapping[str, str]) -> "tuple[Setting, ...]":
    from kvasir.kv.format_spec import KVDtype
    from kvasir.lab.setting import Setting, parse_setting

    if written:
        return tuple(parse_setting(text) for text in written)
    others = [dtype.value for dtype in KVDtype if dtype.value != reference.get("kv_cache_dtype")]
    return tuple(Setting(name=name, flags={"kv_cache_dtype": name}) for name in others)


def _write(outcome: "QualityRun", output: Path, *, html: bool) -> None:
    from kvasir.lab.page import quality_page

    print_note(f"result file: {outcome.write(output)}")
    if html:
        page = output.with_suffix(".html")
        quality_page(outcome).write(page)
        print_note(f"report: {page}")


def _show(outcome: "QualityRun") -> None:
    from kvasir.lab.tables import FLAG_LEGEND, summary_table

    table = summary_table(outcome)
    print_table(table.title, table.columns, table.rows)
    print(FLAG_LEGEND)
    for result in outcome.results:
        for note in result.notes:
            print(f"{result.title}: {note}")
    if outcome.skipped:
        print(f"Not measured, because only servers were asked: {', '.join(outcome.skipped)}.")
