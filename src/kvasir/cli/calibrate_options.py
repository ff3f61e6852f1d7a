"""The options of ``kvasir calibrate`` that make its recipe."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvasir.cli.options import OptionGroup, option
from kvasir.core.errors import ConfigError

if TYPE_CHECKING:
    from kvasir.compression.calibrate import Recipe


def recipe_options() -> OptionGroup:
    return OptionGroup(
        parameters=(
            option(
                "budget",
                float,
                "--budget",
                help="KV bytes of a sequence of --context tokens, as a share of the whole cache in 16 bits.",
                default=0.35,
            ),
            option(
                "context",
                int,
                "--context",
                help="Tokens of a sequence the budget is for. [default: 8192, at most the model's]",
                min=64,
            ),
            option(
                "formats",
                list[str],
                "--kv-cache-dtype",
                help="A format to choose from, as int8 or k=int8,v=int4; repeat. [default: int8]",
            ),
            option("sinks", int, "--sinks", help="First tokens that windowed heads keep.", default=4, min=0),
            option(
                "window",
                int,
                "--window",
                help="Last tokens that windowed heads keep; 0: every head keeps all, and only formats are chosen.",
                default=1024,
                min=0,
            ),
            option(
                "induction_share",
                float,
                "--induction-share",
                help="Share of KV heads that stay whole for copying what followed.",
                default=0.14,
                min=0.0,
                max=1.0,
            ),
            option(
                "echo_share",
                float,
                "--echo-share",
                help="Share of KV heads that stay whole for finding what repeats.",
                default=0.045,
                min=0.0,
                max=1.0,
            ),
        ),
        build=_recipe,
    )


def _recipe(given: Mapping[str, Any]) -> "Recipe":
    from kvasir.compression.calibrate import Recipe
    from kvasir.kv.format_pair import parse_pair

    values = {name: value for name, value in given.items() if value is not None}
    if formats := values.pop("formats", None):
        try:
            values["formats"] = tuple(parse_pair(text) for text in formats)
        except ValueError as error:
            raise ConfigError(f"--kv-cache-dtype: {error}.") from None
    return Recipe(**values)
