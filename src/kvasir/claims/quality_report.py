"""Reads the quality lab's reports where the lab itself is not: before serving, and for README's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kvasir.claims.result_file import ResultFile, ResultFileError, read_result
from kvasir.core.errors import ConfigError

KIND = "kvasir quality report"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What decides a model's numbers: the report of another one says nothing about it."""

    model_digest: str
    layout_digest: str
    weight_dtype: str
    kv_eviction: str = "off"
    kv_sparse_read: str = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """``settings``: those that ran here, as they are named in the report.  ``failures``: setting -> the gate's
    sentences; empty where everything passed or no limit was set."""

    path: Path
    settings: Mapping[str, Served]
    failures: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ``ConfigError`` when the file is no quality report."""
        try:
            measurements = read_result(path).measurements
            if (measurements.get("kind"), measurements.get("version")) != (KIND, VERSION):
                raise ConfigError(f"{path} is no quality report of version {VERSION}; make one with `kvasir quality`.")
            settings = {
                name: Served(
                    model_digest=entry["model_digest"],
                    layout_digest=entry["layout_digest"],
                    weight_dtype=entry["weight_dtype"],
                    kv_eviction=entry["flags"].get("kv_eviction", "off"),
                    kv_sparse_read=entry["flags"].get("kv_sparse_read", "off"),
                )
                for name, entry in measurements["settings"].items()
                if entry.get("base_url") is None
            }
            failures: dict[str, list[str]] = {}
            for failure in (measurements["gate"] or {}).get("failures", []):
                failures.setdefault(failure["setting"], []).append(failure["message"])
        except (ResultFileError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"The quality report {path} cannot be read: {error}") from error
        return cls(path=path, settings=settings, failures=failures)

    def check(self, served: Served) -> None:
        """Raise ``ConfigError`` unless a setting of the report is what is served and none of those failed its gate."""
        matching = [name for name, setting in self.settings.items() if setting == served]
        if not matching:
            raise ConfigError(
                f"The quality report {self.path} is about something else: {self._difference(served)}; measure what is "
                "served with `kvasir quality`, or add --ignore-quality-report."
            )
        sentences = " ".join(sentence for name in matching for sentence in self.failures.get(name, ()))
        if sentences:
            raise ConfigError(
                f"The quality report {self.path} says that what is served failed its gate: {sentences} "
                "Add --ignore-quality-report to serve it all the same."
            )

    def _difference(self, served: Served) -> str:
        """In what the settings of the report differ from ``served``, most telling first."""
        models = {setting.model_digest for setting in self.settings.values()}
        if served.model_digest not in models:
            return f"no setting of it has the model {served.model_digest[:12]}"
        same_model = [setting for setting in self.settings.values() if setting.model_digest == served.model_digest]
        if all(setting.layout_digest != served.layout_digest for setting in same_model):
            return f"no setting of it has the KV layout {served.layout_digest[:12]} on this model"
        same_layout = [setting for setting in same_model if setting.layout_digest == served.layout_digest]
        for name in ("kv_eviction", "kv_sparse_read"):
            found = {getattr(setting, name) for setting in same_layout}
            if getattr(served, name) not in found:
                option = "--" + name.replace("_", "-")
                return f"it was measured with {option} {' and '.join(sorted(found))}, not {getattr(served, name)}"
        dtypes = {s.weight_dtype for s in same_model if s.layout_digest == served.layout_digest}
        return f"with this KV layout it has {', '.join(sorted(dtypes))} weights, and {served.weight_dtype} is served"


def is_quality(result: ResultFile) -> bool:
    return result.measurements.get("kind") == KIND


def quality_table(results: Sequence[ResultFile]) -> str:
    """A Markdown table of every quality report among ``results``: one row a setting, the reference first."""
    columns = _Columns()
    rows = [
        f"| setting | KV bytes/token | {' | '.join(title for title, _, _ in columns.shown)} | result file |",
        f"|---|---|{'---|' * len(columns.shown)}---|",
    ]
    for result in filter(is_quality, results):
        link = f"[{result.name}.json](bench/results/{result.name}.json)"
        for setting in result.measurements["order"]:
            cells = [columns.cell(result.measurements, setting, *column[1:]) for column in columns.shown]
            facts = result.measurements["settings"].get(setting)
            size = f"{facts['bytes_per_token']:,.0f}" if facts and facts.get("bytes_per_token") else ""
            rows.append(f"| {setting} | {size} | {' | '.join(cells)} | {link} |")
    return "\n".join(rows) if len(rows) > 2 else "No quality report has been committed yet."


class _Columns:
    """The figures a reader of one table wants: title, measure, metric."""

    shown = (
        ("KL, nats/token", "kl", "mean"),
        ("same top token", "kl", "top1"),
        ("copy gap, nats", "copy", "gap"),
        ("passkeys", "passkey", "found"),
        ("RULER-style answer loss, nats", "ruler", "answer_loss"),
        ("improbable tokens, rise", "degeneration", "improbable_rise"),
    )

    @staticmethod
    def cell(measurements: Mapping[str, Any], setting: str, measure: str, metric: str) -> str:
        figures = measurements["measures"].get(measure, {}).get("settings", {}).get(setting, {}).get("overall", {})
        found = figures.get(metric)
        if found is None:
            return ""
        low, high = found["low"], found["high"]
        interval = "" if low is None or low == high else f" [{_short(low)}, {_short(high)}]"
        return f"{_short(found['value'])}{interval}"


def _short(value: float) -> str:
    """Three significant digits, and a plain 0 for what is 0."""
    return "0" if value == 0 else f"{value:.3g}"
