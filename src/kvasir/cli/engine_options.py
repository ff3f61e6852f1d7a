"""Every engine flag as a command-line option, made from the one list of flags."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from kvasir.cli.options import OptionGroup, option
from kvasir.core.errors import ConfigError
from kvasir.engine.config import EngineConfig
from kvasir.engine.flags import FLAGS, Flag, FlagKind, make_engine_config

_MODEL_ARGUMENT = "model_argument"
_METAVARS = {
    FlagKind.TEXT: "TEXT",
    FlagKind.INTEGER: "INTEGER",
    FlagKind.NUMBER: "NUMBER",
    FlagKind.SIZE: "SIZE",
}


def engine_options(*, has_model_argument: bool = True, only: frozenset[str] | None = None) -> OptionGroup:
    """Builds an ``EngineConfig``; a value that cannot be one is a usage error that names the flag.

    ``has_model_argument``: the model may also be given without ``--model``, as the command's one argument.
    ``only``: names of the flags to offer (None: all), for a command that decides the others itself."""
    model = inspect.Parameter(
        _MODEL_ARGUMENT,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")],
    )
    flags = [_parameter(flag) for flag in FLAGS if only is None or flag.name in only]
    return OptionGroup(parameters=[model, *flags] if has_model_argument else flags, build=_build)


def _parameter(flag: Flag) -> inspect.Parameter:
    help_text = f"{flag.help} [default: {flag.default_text}]"
    if flag.kind is FlagKind.SWITCH:
        return option(flag.name, bool, f"{flag.option}/--no-{flag.option[2:]}", help=help_text, show_default=False)
    spellings = [flag.option, *("--" + alias.replace("_", "-") for alias in flag.aliases)]
    words = (flag.automatic, *flag.choices) if flag.automatic else flag.choices
    metavar = f"[{'|'.join(words)}]" if flag.choices else _METAVARS[flag.kind]
    return option(flag.name, str, *spellings, help=help_text, metavar=metavar, callback=_checker(flag))


def _checker(flag: Flag) -> Callable[[str | None], str | None]:
    def check(value: str | None) -> str | None:
        if value is not None:
            try:
                flag.parse(value)
            except ConfigError as error:
                raise typer.BadParameter(str(error)) from error
        return value

    return check


def _build(given: Mapping[str, Any]) -> EngineConfig:
    flags = dict(given)
    model = flags.pop(_MODEL_ARGUMENT, None)
    if model is not None:
        if flags["model"] is not None:
            raise ConfigError(f"The model was given twice, as {model!r} and as --model {flags['model']!r}; give one.")
        flags["model"] = model
    return make_engine_config(**flags)
