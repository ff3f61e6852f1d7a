"""The options of ``kvasir plan`` in groups: how the engine runs, its load, on which machine, what to show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvasir.cli.engine_options import engine_options
from kvasir.cli.options import OptionGroup, option
from kvasir.engine.flags import FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAsked:
    """As written; None was not given."""

    engine: str | None = None
    engine_version: str | None = None
    max_model_len: int | None = None
    weight_dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    tp: int | None = None
    memory_utilization: float | None = None
    kv_cache_memory: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsked:
    users: int = 32
    prompt_tokens: str = "lognormal:800,4000"
    output_tokens: str = "lognormal:250,900"
    shared_prefix: int = 0
    max_tpot_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAsked:
    """Flags of ``kvasir serve`` that shape its pool and that other engines do not have, by name."""

    flags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineAsked:
    hardware: tuple[str, ...] = ()
    prices: tuple[str, ...] = ()
    from_log: Path | None = None
    safety: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputAsked:
    as_json: bool = False
    html: Path | None = None
    list_models: bool = False
    list_hardware: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The whole command line."""

    model: str
    run: RunAsked = field(default_factory=RunAsked)
    own: OwnAsked = field(default_factory=OwnAsked)
    load: LoadAsked = field(default_factory=LoadAsked)
    machine: MachineAsked = field(default_factory=MachineAsked)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in values.items() if value is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


RUN = OptionGroup(
    parameters=(
        option("engine", str, "--engine", help="kvasir, vllm, sglang or llama.cpp. [default: vllm; kvasir on 'this']"),
        option("engine_version", str, "--engine-version", help="Its version; vLLM changed its rules. [default: 0.21]"),
        option(
            "max_model_len",
            int,
            *("--max-model-len", "--context"),
            help="Longest prompt and output together. [default: the model's own, at most 32768]",
        ),
        option(
            "weight_dtype",
            str,
            "--weight-dtype",
            help="bf16, fp8, int8, int4, nf4, mxfp4, nvfp4, q8_0, q4_k_m ... [default: the checkpoint's]",
        ),
        option(
            "kv_cache_dtype",
            str,
            "--kv-cache-dtype",
            help="bf16, fp32, fp8, int8, int4, q8_0 ...; K and V apart as 'k=q8_0,v=q4_0'. [default: 16 bits]",
        ),
        option("block_size", int, "--block-size", help="Tokens of a block. [default: the engine's]"),
        option("tp", int, "--tp", help="Devices that share every layer. [default: the fewest that do]"),
        option(
            "memory_utilization",
            float,
            *("--memory-utilization", "--gpu-memory-utilization"),
            help="Share of a device's memory the engine takes. [default: the engine's]",
        ),
        option("kv_cache_memory", str, "--kv-cache-memory", help="Size of Kvasir's KV pool, for example 2GiB."),
        option("max_num_seqs", int, "--max-num-seqs", help="Sequences that run at once. [default: the engine's]"),
        option(
            "max_num_batched_tokens",
            int,
            "--max-num-batched-tokens",
            help="Tokens of one step. [default: the engine's]",
        ),
    ),
    build=lambda values: RunAsked(**_given(values)),
)

_SHARED = frozenset(parameter.name for parameter in RUN.parameters)
_OWN = frozenset(flag.name for flag in FLAGS if flag.section == "KV cache") - _SHARED
OWN = OptionGroup(
    parameters=engine_options(has_model_argument=False, only=_OWN).parameters,
    build=lambda values: OwnAsked(flags=_given(values)),
)

LOAD = OptionGroup(
    parameters=(
        option("users", int, "--users", help="Sequences that run at once. [default: 32]"),
        option(
            "prompt_tokens",
            str,
            "--prompt-tokens",
            help="Lengths of prompts: 900, uniform:100-2000 or lognormal:MEDIAN,P95. [default: lognormal:800,4000]",
        ),
        option("output_tokens", str, "--output-tokens", help="Lengths of answers. [default: lognormal:250,900]"),
        option("shared_prefix", int, "--shared-prefix", help="Tokens all prompts begin with. [default: 0]"),
        option("max_tpot_ms", float, "--max-tpot-ms", help="Slowest time per output token that is allowed."),
    ),
    build=lambda values: LoadAsked(**_given(values)),
)

MACHINE = OptionGroup(
    parameters=(
        option(
            "hardware",
            list[str],
            "--hardware",
            help="A device by name, or 'this'; repeat to compare. [default: the cheapest of all that holds the load]",
        ),
        option("prices", list[str], "--price", help="Dollars per hour of a device, as NAME=USD; repeat."),
        option("from_log", Path, "--from-log", help="A start-up log of the engine: replaces estimated overheads."),
        option("safety", float, "--safety", help="Share of the reckoned sequences to plan with. [default: 0.7, or 1]"),
    ),
    build=lambda values: MachineAsked(**_given(values)),
)

OUTPUT = OptionGroup(
    parameters=(
        option("as_json", bool, "--json", help="Print the plan as JSON.", default=False),
        option("html", Path, "--html", help="Write a report with plots, one file."),
        option("list_models", bool, "--list-models", help="Name the built-in models.", default=False),
        option("list_hardware", bool, "--list-hardware", help="Name the known devices.", default=False),
    ),
    build=lambda values: OutputAsked(**_given(values)),
)
