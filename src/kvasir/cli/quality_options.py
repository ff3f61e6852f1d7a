"""The options of ``kvasir quality``, in groups: what is measured, what is shared, what comes out, what must hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvasir.cli.engine_options import engine_options
from kvasir.cli.options import OptionGroup, option
from kvasir.core.errors import ConfigError

if TYPE_CHECKING:
    from kvasir.lab.gate import Limit
    from kvasir.lab.session import QualityPlan
    from kvasir.lab.setting import Setting

_SHARED_FLAGS = frozenset({"model", "weight_dtype", "max_model_len", "kernels", "threads", "seed"})
_MODEL_ARGUMENT = "model_argument"
DEFAULT_OUTPUT = Path("quality.json")

_WHAT = (
    option(
        "setting",
        list[str],
        "--setting",
        metavar="NAME=...",
        help="NAME=flag:value,flag:value with flags of `kvasir serve`, or NAME=http://host:port/v1 of any server; may "
        "be repeated. [default: every --kv-cache-dtype but fp8 and the reference's]",
    ),
    option(
        "reference",
        str,
        "--reference",
        metavar="FLAG:VALUE,...",
        help="What settings are compared with. [default: kv_cache_dtype:bf16]",
    ),
    option("is_full", bool, "--full/--quick", help="Long contexts and many samples, or a look within minutes."),
    option("measures", str, "--measures", metavar="NAME,...", help="Which measures. [default: all]"),
    option(
        "text",
        list[Path],
        "--text",
        metavar="FILE",
        help="A text to measure on; may be repeated. [default: the files of KVASIR_DATA, else what the model writes]",
    ),
    option(
        "plugin",
        list[Path],
        "--plugin",
        metavar="FILE",
        help="A Python file with a measure of your own; may be repeated.",
    ),
)
_GATE = (
    option("max_kl", float, "--max-kl", help="Gate: largest mean KL divergence, nats/token."),
    option("max_copy_gap", float, "--max-copy-gap", help="Gate: largest repeat-copy gap, nats/token."),
    option("min_passkey", float, "--min-passkey", help="Gate: least share of passkeys found, 0 to 1."),
)
_OUTPUT = (
    option(
        "path", Path, "--output", metavar="FILE", help="Result file; the HTML report lies beside it. [quality.json]"
    ),
    option("html", bool, "--html/--no-html", help="Write the HTML report, which needs plotly. [default: html]"),
    option("as_json", bool, "--json", help="Print the result file instead of the table."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class What:
    """What is measured, as it was written."""

    setting: list[str]
    reference: str | None
    is_full: bool
    measures: str | None
    text: tuple[Path, ...]
    plugin: tuple[Path, ...]

    def plan(self, shared: Mapping[str, str], limits: "tuple[Limit, ...]") -> "QualityPlan":
        """Raises ``ConfigError`` for what cannot be meant."""
        from kvasir.lab.measure import Size
        from kvasir.lab.opening import DEFAULT_REFERENCE, LabPlan
        from kvasir.lab.registry import MeasureRegistry
        from kvasir.lab.session import QualityPlan
        from kvasir.lab.setting import parse_flags

        reference = DEFAULT_REFERENCE if self.reference is None else parse_flags(self.reference)
        return QualityPlan(
            lab=LabPlan(
                settings=self._settings(reference),
                shared=shared,
                reference=reference,
                texts=self.text,
                size=Size.FULL if self.is_full else Size.QUICK,
            ),
            measures=tuple(name.strip() for name in self.measures.split(",")) if self.measures else (),
            limits=limits,
            registry=MeasureRegistry(self.plugin),
        )

    def _settings(self, reference: Mapping[str, str]) -> "tuple[Setting, ...]":
        from kvasir.kv.format_spec import KVDtype
        from kvasir.lab.setting import Setting, parse_setting

        if self.setting:
            return tuple(parse_setting(text) for text in self.setting)
        # fp8 needs scales that only a profile has; it is measured where it is named.
        known = [dtype.value for dtype in KVDtype if dtype is not KVDtype.FP8]
        others = [name for name in known if name != reference.get("kv_cache_dtype")]
        return tuple(Setting(name=name, flags={"kv_cache_dtype": name}) for name in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    path: Path
    html: bool
    as_json: bool


def shared_options() -> OptionGroup:
    """Flags that the reference and every setting have in common, as they were written."""
    return OptionGroup(parameters=engine_options(only=_SHARED_FLAGS).parameters, build=_shared_flags)


def what_options() -> OptionGroup:
    return OptionGroup(parameters=_WHAT, build=_what)


def gate_options() -> OptionGroup:
    return OptionGroup(parameters=_GATE, build=_limits)


def output_options() -> OptionGroup:
    return OptionGroup(parameters=_OUTPUT, build=_output)


def _shared_flags(given: Mapping[str, Any]) -> dict[str, str]:
    flags = {name: str(value) for name, value in given.items() if value is not None}
    argument = flags.pop(_MODEL_ARGUMENT, None)
    if argument is not None:
        if "model" in flags:
            raise ConfigError(
                f"The model was given twice, as {argument!r} and as --model {flags['model']!r}; give one."
            )
        flags["model"] = argument
    return flags


def _what(given: Mapping[str, Any]) -> What:
    return What(
        setting=given["setting"] or [],
        reference=given["reference"],
        is_full=bool(given["is_full"]),
        measures=given["measures"],
        text=tuple(given["text"] or ()),
        plugin=tuple(given["plugin"] or ()),
    )


def _limits(given: Mapping[str, Any]) -> "tuple[Limit, ...]":
    from kvasir.lab.gate import make_limits

    return make_limits(**given)


def _output(given: Mapping[str, Any]) -> Output:
    return Output(
        path=given["path"] or DEFAULT_OUTPUT,
        html=given["html"] is not False,
        as_json=bool(given["as_json"]),
    )
