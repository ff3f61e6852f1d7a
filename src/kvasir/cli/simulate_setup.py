"""From the deployment options of ``kvasir simulate`` to a set-up: by a device's roofline, or by fitted step costs."""

from dataclasses import dataclass, replace
from pathlib import Path

from kvasir.cli.simulate_options import Given
from kvasir.core.errors import ConfigError
from kvasir.engine.byte_size import parse_bytes
from kvasir.kv.eviction import EvictionRule, parse_eviction
from kvasir.kv.retention import FULL, Retention, parse_retention
from kvasir.models.model_cache import cache_directory
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.cost_file import CostFile, read_cost_file
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.routing import FleetShape, Routing
from kvasir.simulator.simulate import SimulationSetup
from kvasir.simulator.step_cost import StepCost
from kvasir.simulator.sweep import Scenario
from kvasir.workload.traces.trace import Trace

_BLOCK_SIZE = 16
_MAX_NUM_SEQS = 256
_MAX_NUM_BATCHED_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A scenario, what it stands for in one line, and what a reader should know of it."""

    scenario: Scenario
    deployment: str
    notes: tuple[str, ...]


def default_cost_file() -> Path:
    """Where the last calibration is kept."""
    return cache_directory() / "step_costs.json"


def make_scenario(trace: Trace, given: Given) -> Described:
    """Raises ``ConfigError`` or ``ModelError`` when there is nothing to simulate on."""
    if given["hardware"] is not None:
        if given["costs"] is not None:
            raise ConfigError("--hardware and --costs both say what a step costs; give one of them.")
        return _on_device(trace, given)
    path = Path(given["costs"]) if given["costs"] is not None else default_cost_file()
    if given["costs"] is None and not path.exists():
        raise ConfigError(
            "Say what a step costs: --model and --hardware (a device by name), or --costs FILE from "
            "`kvasir simulate --calibrate`."
        )
    return _calibrated(trace, given, path)


def _calibrated(trace: Trace, given: Given, path: Path) -> Described:
    file = read_cost_file(path)
    probed = file.deployment
    for name in ("model", "tp", "weight_dtype", "kv_cache_dtype", "kv_cache_memory", "memory_utilization"):
        if given[name] is not None:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} has no effect with step costs: {path.name} was measured on {probed.model}.")
    block_size = _block_size(trace, given)
    num_blocks = given["kv_blocks"] or _probed_blocks(file, block_size)
    setup = _setup(
        given,
        cost=replace(file.cost, retention=parse_rule(given).rounded(block_size)),
        num_blocks=(num_blocks,),
        block_size=block_size,
        max_model_len=given["max_model_len"] or probed.max_model_len,
        scheduler=SchedulerConfig(
            max_num_batched_tokens=probed.max_num_batched_tokens, max_num_seqs=probed.max_num_seqs
        ),
    )
    notes = () if file.error <= 0.15 else (f"The step costs fit the probe only within {100 * file.error:.0f} %.",)
    return Described(
        scenario=Scenario(trace=trace, setup=setup, price_per_instance=given["price"]),
        deployment=f"{probed.model} on {probed.machine}, step costs fitted {file.date}; {_pool(setup)}",
        notes=notes,
    )


def parse_rule(given: Given) -> Retention:
    """What ``--kv-retention`` says."""
    text = given["kv_retention"]
    try:
        return FULL if text is None else parse_retention(text)
    except ValueError as error:
        raise ConfigError(f"--kv-retention {text!r}: {error}.") from error


def _probed_blocks(file: CostFile, block_size: int) -> int:
    probed = file.deployment
    if probed.num_blocks is None:
        raise ConfigError("The probed server did not say how large its KV pool is; give --kv-blocks.")
    return max(1, probed.num_blocks[0] * probed.block_size // block_size)


def _on_device(trace: Trace, given: Given) -> Described:
    from kvasir.cli.simulate_device import resolve_device
    from kvasir.simulator.deployment import pool_blocks

    block_size = _block_size(trace, given)
    device = resolve_device(given, block_size, parse_rule(given))
    scheduler = SchedulerConfig(
        max_num_batched_tokens=given["max_num_batched_tokens"] or _MAX_NUM_BATCHED_TOKENS,
        max_num_seqs=given["max_num_seqs"] or _MAX_NUM_SEQS,
    )
    max_model_len = given["max_model_len"] or device.cost.shape.max_context
    if given["kv_blocks"] is not None:
        needs = [
            rule.max_blocks(max_model_len, scheduler.max_num_batched_tokens, block_size)
            for rule in device.cost.retentions
        ]
        num_blocks = tuple(max(1, given["kv_blocks"] * need // sum(needs)) for need in needs)
    else:
        asked = given["kv_cache_memory"]
        kv_bytes = device.kv_bytes() if asked is None else parse_bytes(asked)
        num_blocks = pool_blocks(device.cost, kv_bytes, max_model_len, scheduler)
    setup = _setup(
        given,
        cost=device.cost,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        scheduler=scheduler,
    )
    return Described(
        scenario=Scenario(trace=trace, setup=setup, price_per_instance=device.price_per_hour),
        deployment=f"{device.description}; {_pool(setup)}",
        notes=device.notes,
    )


def _setup(
    given: Given,
    *,
    cost: StepCost,
    num_blocks: tuple[int, ...],
    block_size: int,
    max_model_len: int,
    scheduler: SchedulerConfig,
) -> SimulationSetup:
    overrides = {
        "max_num_batched_tokens": given["max_num_batched_tokens"],
        "max_num_seqs": given["max_num_seqs"],
        "long_prefill_token_threshold": given["long_prefill_token_threshold"],
        "max_waiting": given["max_waiting"],
    }
    return SimulationSetup(
        cost=cost,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        block_size=block_size,
        scheduler=replace(scheduler, **{name: value for name, value in overrides.items() if value is not None}),
        eviction=_eviction(given["kv_eviction"]),
        policy=given["policy"] or EvictionPolicy.LRU,
        enable_prefix_caching=given["prefix_caching"] is not False,
        fleet=FleetShape(
            num_instances=given["instances"] or 1,
            routing=given["routing"] or Routing.LEAST_LOADED,
            num_long=given["long_instances"] or 0,
            length_cut=given["length_cut"] or 0,
        ),
        num_clients=given["max_concurrency"],
    )


def _eviction(text: str | None) -> EvictionRule | None:
    if text is None or text == "off":
        return None
    try:
        return parse_eviction(text)
    except ValueError as error:
        raise ConfigError(f"--kv-eviction {text!r}: {error}.") from error


def _block_size(trace: Trace, given: Given) -> int:
    """A trace knows nothing finer than its own blocks, and coarse ones are quicker to simulate."""
    block_size = given["block_size"] or trace.hash_block_size or _BLOCK_SIZE
    if block_size % 16:
        raise ConfigError(f"--block-size must be a multiple of 16, got {block_size}.")
    return block_size


def _pool(setup: SimulationSetup) -> str:
    fleet = setup.fleet
    blocks = " + ".join(f"{count:,}" for count in setup.num_blocks)
    each = "" if fleet.num_instances == 1 else f" each on {fleet.num_instances} instances ({fleet.routing.value})"
    loop = (
        "" if setup.num_clients is None else f"; a closed loop of {setup.num_clients:,} clients, not the recorded times"
    )
    rules = setup.cost.retentions
    kept = "" if rules == (FULL,) else f" ({' + '.join(map(str, rules))})"
    return f"{blocks} blocks of {setup.block_size} tokens{kept}{each}{loop}"
