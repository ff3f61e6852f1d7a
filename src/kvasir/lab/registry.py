"""Which measures there are: one line here makes a file in ``measures/`` a measure; a person's own file is one too."""

import importlib.util
import inspect
from importlib import import_module
from pathlib import Path
from typing import cast

from kvasir.core.errors import ConfigError
from kvasir.lab.measure import Measure

BUILT_IN: dict[str, str] = {
    "kl": "kvasir.lab.measures.kl:KLDivergence",
    "perplexity": "kvasir.lab.measures.perplexity:Perplexity",
    "copy": "kvasir.lab.measures.copy_gap:CopyGap",
    "passkey": "kvasir.lab.measures.passkey:Passkey",
    "ruler": "kvasir.lab.measures.ruler:Ruler",
    "turns": "kvasir.lab.measures.multi_turn:MultiTurn",
    "degeneration": "kvasir.lab.measures.degeneration:Degeneration",
}
"""Name -> "module:class", in the order of reports.  A module is imported when its measure is first asked for."""


class MeasureRegistry:
    """Measures by name: the built-in ones and those of ``plugins``, Python files that define measures."""

    def __init__(self, plugins: tuple[Path, ...] = ()) -> None:
        self._added: dict[str, type[Measure]] = {}
        for plugin in plugins:
            for measure in _measures_in(plugin):
                if measure.name in self.names:
                    raise ConfigError(f"{plugin} defines the measure {measure.name!r}, which exists already.")
                self._added[measure.name] = measure

    @property
    def names(self) -> tuple[str, ...]:
        return (*BUILT_IN, *self._added)

    def find(self, name: str) -> type[Measure]:
        """Raises ``ConfigError`` naming all measures when there is none of that name."""
        if name in self._added:
            return self._added[name]
        if name not in BUILT_IN:
            raise ConfigError(f"There is no measure {name!r}; there are {', '.join(self.names)}.")
        module, attribute = BUILT_IN[name].split(":")
        return getattr(import_module(module), attribute)


def _measures_in(plugin: Path) -> list[type[Measure]]:
    """Classes of the file with everything that ``Measure`` asks for.  Raises ``ConfigError`` when there are none."""
    spec = importlib.util.spec_from_file_location(f"kvasir_plugin_{plugin.stem}", plugin)
    if not plugin.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"There is no Python file {plugin} to take a measure from.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[type[Measure]] = [
        cast(type[Measure], value)
        for _, value in inspect.getmembers(module, inspect.isclass)
        if value.__module__ == module.__name__
        and all(hasattr(value, attribute) for attribute in ("name", "title", "needs_scores", "sized", "run"))
    ]
    if not found:
        raise ConfigError(f"{plugin} defines no class with name, title, needs_scores, sized() and run().")
    return found
