"""``kvasir simulate``: recorded traffic on a deployment that need not exist: latencies, hits, memory, dollars."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvasir.cli.console import print_note
from kvasir.cli.options import with_groups
from kvasir.cli.simulate_modes import check_modes
from kvasir.cli.simulate_options import CALIBRATION, DEPLOYMENT, QUESTION, TRAFFIC, Given
from kvasir.core.errors import ConfigError

if TYPE_CHECKING:
    from kvasir.workload.traces.trace import Trace

_Html = Annotated[Path | None, typer.Option("--html", help="Write a report with plots, one file.")]
_Chrome = Annotated[Path | None, typer.Option("--chrome-trace", help="Write every step and request for Perfetto.")]


@with_groups(traffic=TRAFFIC, deployment=DEPLOYMENT, question=QUESTION, calibration=CALIBRATION)
def run(
    traffic: Given,
    deployment: Given,
    question: Given,
    calibration: Given,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    html: _Html = None,
    chrome_trace: _Chrome = None,
) -> None:
    check_modes(traffic, deployment, question, calibration)
    if calibration["calibrate"]:
        from kvasir.cli.simulate_calibrate import calibrate

        calibrate(deployment, calibration, as_json=as_json)
        return
    from kvasir.cli.simulate_runs import Output, find_rate, one_run, replay_hit_rates, sweep
    from kvasir.cli.simulate_setup import make_scenario

    output = Output(as_json=as_json, html=html, chrome_trace=chrome_trace)
    output.check(is_one_run=not (question["capacity"] or question["sweep"] or question["hit_rates"]))
    trace = _traffic(traffic, deployment)
    if question["hit_rates"] is not None:
        replay_hit_rates(trace, question, deployment["policy"], output)
        return
    if traffic["emit"] is not None and deployment["hardware"] is None and deployment["costs"] is None:
        return  # the trace was only to be converted
    described = make_scenario(trace, {**deployment, "max_concurrency": traffic["max_concurrency"]})
    for note in (described.deployment, *described.notes):
        print_note(note)
    if question["capacity"]:
        find_rate(described, question, traffic, output)
    elif question["sweep"]:
        sweep(described, question, output)
    else:
        one_run(described, question, output)


def _traffic(traffic: Given, deployment: Given) -> "Trace":
    from kvasir.cli.simulate_traffic import describe, emit, load_traffic

    trace = load_traffic(traffic, lambda: _tokenizer(deployment["model"]))
    print_note(describe(trace))
    if traffic["emit"] is not None:
        emit(trace, Path(traffic["emit"]))
        print_note(f"written: {traffic['emit']}")
    return trace


def _tokenizer(model: str | None) -> Any:
    if model is None:
        raise ConfigError("The trace holds texts: name the --model whose tokenizer counts them.")
    from kvasir.models.resolve import resolve_model
    from kvasir.text.tokenizer import Tokenizer

    return Tokenizer.from_folder(resolve_model(model).path)
