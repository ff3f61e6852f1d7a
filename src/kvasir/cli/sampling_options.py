"""Sampling settings as command-line options, under the names the API gives them."""

from collections.abc import Mapping
from typing import Any

from kvasir.cli.options import OptionGroup, option
from kvasir.core.sampling import SamplingParams

_OPTIONS = (
    option("temperature", float, "--temperature", help="0 takes the likeliest token every time. [default: 0.7]"),
    option("top_p", float, "--top-p", help="Draw from the likeliest tokens that hold this much. [default: 0.95]"),
    option("top_k", int, "--top-k", help="Draw from this many likeliest tokens; 0 is no limit. [default: 0]"),
    option("min_p", float, "--min-p", help="Draw from tokens at least this share of the likeliest. [default: 0]"),
    option("repetition_penalty", float, "--repetition-penalty", help="Above 1 discourages repeats. [default: 1]"),
    option("max_tokens", int, "--max-tokens", help="Longest answer. [default: what the context leaves]"),
    # --seed is the engine's.
    option("sampling_seed", int, "--sampling-seed", help="Makes an answer depend on its conversation only."),
    option("stop", list[str], "--stop", help="Text that ends an answer; may be given several times."),
)
_CHAT_DEFAULTS: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95}


def sampling_options() -> OptionGroup:
    """Builds the ``SamplingParams`` of every answer in a chat."""
    return OptionGroup(parameters=_OPTIONS, build=_build)


def _build(given: Mapping[str, Any]) -> SamplingParams:
    values = _CHAT_DEFAULTS | {name: value for name, value in given.items() if value is not None}
    values["stop"] = tuple(values.get("stop", ()))
    values["seed"] = values.pop("sampling_seed", None)
    return SamplingParams(**values)
