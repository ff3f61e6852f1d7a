"""``kvasir simulate --calibrate``: probes the local engine or a live server and keeps the fitted step costs."""

from pathlib import Path

from kvasir.cli.console import print_json, print_note, print_table
from kvasir.cli.progress import progress_bars
from kvasir.cli.simulate_options import Given
from kvasir.cli.simulate_setup import default_cost_file
from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress
from kvasir.simulator.calibration import Fit, fit_costs
from kvasir.simulator.cost_file import CostFile, ProbedDeployment
from kvasir.simulator.probe_loads import PROBE_S
from kvasir.simulator.report_tables import seconds

_DEFAULT_CHUNK = 2048


def calibrate(deployment: Given, asked: Given, *, as_json: bool) -> None:
    """Probe, fit, write, and say how well it fits."""
    target = Path(deployment["costs"]) if deployment["costs"] is not None else default_cost_file()
    length_s = PROBE_S if asked["probe_s"] is None else asked["probe_s"]
    with progress_bars() as progress:
        if asked["base_url"] is not None:
            fit, probed = _probe_server(deployment, asked, length_s, progress)
        else:
            fit, probed = _probe_engine(deployment, asked, length_s, progress)
    file = CostFile.of(fit, probed)
    file.write(target)
    if as_json:
        print_json(file.to_json())
    else:
        _print_fit(fit, probed)
    print_note(f"written: {target}")


def _probe_engine(deployment: Given, asked: Given, length_s: float, progress: Progress) -> tuple[Fit, ProbedDeployment]:
    from kvasir.claims.machine import machine_card
    from kvasir.engine.engine import Engine
    from kvasir.engine.flags import make_engine_config
    from kvasir.simulator.engine_probe import probe_engine

    names = ("weight_dtype", "kv_cache_dtype", "kv_cache_memory", "memory_utilization", "max_model_len")
    names += ("max_num_seqs", "max_num_batched_tokens")
    block_size = deployment["block_size"]
    config = make_engine_config(
        model=deployment["model"],
        threads=asked["threads"],
        block_size=None if block_size is None else str(block_size),
        **{name: deployment[name] for name in names},
    )
    engine = Engine.from_config(config, progress)
    try:
        if any(spec.retention.window for spec in engine.layout.groups):
            raise ConfigError(f"{config.model} has sliding windows; step costs are fitted for full attention only.")
        fit = fit_costs(probe_engine(engine, seconds=length_s, progress=progress))
    finally:
        engine.close()
    return fit, ProbedDeployment(
        model=engine.folder.name,
        machine=str(machine_card()["cpu"]),
        max_model_len=engine.max_model_len,
        max_num_batched_tokens=engine.config.scheduler.max_num_batched_tokens,
        max_num_seqs=engine.config.scheduler.max_num_seqs,
        block_size=engine.layout.block_size,
        num_blocks=engine.num_blocks,
    )


def _probe_server(deployment: Given, asked: Given, length_s: float, progress: Progress) -> tuple[Fit, ProbedDeployment]:
    from kvasir.simulator.live_probe import LiveServer, first_model, probe_server

    model, context = first_model(asked["base_url"], asked["api_key"])
    server = LiveServer(
        base_url=asked["base_url"],
        model=deployment["model"] or model,
        max_num_batched_tokens=deployment["max_num_batched_tokens"] or _DEFAULT_CHUNK,
        max_model_len=deployment["max_model_len"] or context or 4096,
        api_key=asked["api_key"],
    )
    if deployment["max_num_batched_tokens"] is None:
        print_note(
            f"A server does not say how many tokens its steps hold; {_DEFAULT_CHUNK} is assumed "
            "(--max-num-batched-tokens)."
        )
    fit = fit_costs(probe_server(server, seconds=length_s, progress=progress))
    return fit, ProbedDeployment(
        model=server.model,
        machine=asked["base_url"],
        max_model_len=server.max_model_len,
        max_num_batched_tokens=server.max_num_batched_tokens,
        max_num_seqs=deployment["max_num_seqs"] or 256,
        block_size=deployment["block_size"] or 16,
        num_blocks=None if deployment["kv_blocks"] is None else (deployment["kv_blocks"],),
    )


def _print_fit(fit: Fit, probed: ProbedDeployment) -> None:
    cost = fit.cost
    rows = [
        ("a step", seconds(cost.per_step_s), "weights read, layers started, scheduling"),
        ("a token", seconds(cost.per_token_s), "products of one new token"),
        ("a sequence", seconds(cost.per_sequence_s), "its row, its logits, its sample"),
        ("a thousand pairs", seconds(1000 * cost.per_pair_s), "of a new token and a key it sees"),
        ("a thousand keys", seconds(1000 * cost.per_read_s), "read, once for each sequence"),
    ]
    print_table(f"Step costs of {probed.model} on {probed.machine}", ("", ">costs", "for"), rows)
    print_table(
        f"How well they fit: {100 * fit.error:.1f} % off, median of {fit.num_observations:,} timed steps "
        f"({fit.num_left_out:,} outliers left out of the fit)",
        ("load", ">off by"),
        [(load, f"{100 * error:.1f} %") for load, error in fit.errors.items()],
    )
