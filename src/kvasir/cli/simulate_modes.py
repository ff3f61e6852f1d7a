"""What goes with what on the command line of ``kvasir simulate``: an option that would do nothing is refused."""

from collections.abc import Iterator

from kvasir.cli.simulate_options import CALIBRATION, DEPLOYMENT, QUESTION, TRAFFIC, Given
from kvasir.core.errors import ConfigError

_HITS_USE = {"policy"}
_PROBE_USES = {
    *("model", "costs", "weight_dtype", "kv_cache_dtype", "kv_cache_memory", "memory_utilization", "block_size"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_blocks"),
}


def check_modes(traffic: Given, deployment: Given, question: Given, calibration: Given) -> None:
    """Raises ``ConfigError`` that names both options."""
    if calibration["calibrate"]:
        _refuse(traffic, set(), "--calibrate, which plays loads of its own")
        _refuse(question, set(), "--calibrate")
        _refuse(deployment, _PROBE_USES, "--calibrate")
        return
    _refuse(calibration, set(), "a simulation; it belongs to --calibrate")
    modes = [name for name in ("hit_rates", "capacity", "sweep") if question[name]]
    if len(modes) > 1:
        raise ConfigError(f"{_spelling(modes[0])} and {_spelling(modes[1])} are two questions; ask one at a time.")
    if question["hit_rates"]:
        _refuse(deployment, _HITS_USE, "--hit-rates, which knows no time and no device")
        for name in ("max_concurrency", "request_rate", "trace_speed", "burstiness"):
            _refuse_one(traffic, name, "--hit-rates, which knows no time")
        _refuse_one(question, "goodput", "--hit-rates, which knows no time")
    if not question["capacity"]:
        _refuse_one(question, "attainment", "anything but --capacity")
    if not question["hit_rates"]:
        _refuse_one(question, "from_share", "anything but --hit-rates")


def _refuse(given: Given, allowed: set[str], why: str) -> None:
    for name in given:
        if name not in allowed:
            _refuse_one(given, name, why)


def _refuse_one(given: Given, name: str, why: str) -> None:
    if given[name] not in (None, False, []):
        raise ConfigError(f"{_spelling(name)} does not go with {why}.")


def _spelling(name: str) -> str:
    """How a person writes the option ``name``."""
    for group in (TRAFFIC, DEPLOYMENT, QUESTION, CALIBRATION):
        for parameter in group.parameters:
            if parameter.name == name:
                return next(_spellings(parameter.annotation.__metadata__[0]), "--goodput")
    raise KeyError(name)


def _spellings(details: object) -> Iterator[str]:
    # Inside ``Annotated`` typer keeps the first spelling where a default would be.
    words = (getattr(details, "default", None), *(getattr(details, "param_decls", None) or ()))
    return (str(word).partition("/")[0] for word in words if str(word).startswith("--"))
