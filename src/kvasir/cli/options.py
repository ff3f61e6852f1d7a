"""Groups of options that several commands share: each becomes one value, such as an engine configuration."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

Command = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """``parameters`` are what the command line offers; ``build`` makes the value from what was given (None: not)."""

    parameters: Sequence[inspect.Parameter]
    build: Callable[[Mapping[str, Any]], Any]


def with_groups(**groups: OptionGroup) -> Callable[[Command], Command]:
    """The command's parameter ``name`` gets what ``groups[name]`` builds; its other parameters stay options of its own.

    Options are listed in the order of the command's parameters.
    """

    def decorate(command: Command) -> Command:
        def run(**given: Any) -> None:
            built = {
                name: group.build({parameter.name: given.pop(parameter.name) for parameter in group.parameters})
                for name, group in groups.items()
            }
            command(**built, **given)

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name in groups:
                parameters += groups[parameter.name].parameters
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def option(name: str, kind: Any, *spellings: str, help: str, default: Any = None, **details: Any) -> inspect.Parameter:
    """One option; without a ``default`` it is optional and None when not given."""
    if default is None:
        kind = kind | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(*spellings, help=help, **details)],
    )
