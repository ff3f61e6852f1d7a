"""Every engine setting as a flag; the command line, ``LLM`` and the documents are all made from this table."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from kvasir.core.errors import ConfigError
from kvasir.engine.config import EngineConfig, KernelChoice, WeightDtype
from kvasir.engine.flag import Flag, FlagKind, FlagValue, read_path
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.spec import BLOCK_SIZES
from kvasir.scheduling.config import BatchingMode, QueuePolicy


def _choices(enum: type[Enum]) -> tuple[str, ...]:
    return tuple(member.value for member in enum)


FLAGS: tuple[Flag, ...] = (
    Flag(
        name="model",
        path="model",
        kind=FlagKind.TEXT,
        section="Model",
        help="What to serve: 'demo', a folder in Hugging Face layout, a .gguf file, or a Hugging Face id.",
    ),
    Flag(
        name="max_model_len",
        path="max_model_len",
        kind=FlagKind.INTEGER,
        section="Model",
        automatic="auto",
        minimum=1,
        help="Longest prompt and output together, in tokens; auto is the model's own context.",
    ),
    Flag(
        name="weight_dtype",
        path="weight_dtype",
        kind=FlagKind.CHOICE,
        section="Model",
        enum=WeightDtype,
        choices=_choices(WeightDtype),
        help="How weights are held and multiplied; int8 is exact in every batch shape.",
    ),
    Flag(
        name="seed",
        path="seed",
        kind=FlagKind.INTEGER,
        section="Model",
        help="Seeds the requests that bring no seed of their own.",
    ),
    Flag(
        name="kv_cache_memory",
        path="cache.memory.kv_cache_memory_bytes",
        kind=FlagKind.SIZE,
        section="KV cache",
        automatic="from --memory-utilization",
        aliases=("kv_cache_memory_bytes",),
        help="Size of the KV pool, for example 2GiB; a hard ceiling.",
    ),
    Flag(
        name="memory_utilization",
        path="cache.memory.memory_utilization",
        kind=FlagKind.NUMBER,
        section="KV cache",
        aliases=("gpu_memory_utilization",),
        help="Share of the memory that the machine or its cgroup allows for weights, work and KV pool together.",
    ),
    Flag(
        name="kv_cache_dtype",
        path="cache.kv_cache_dtype",
        kind=FlagKind.FORMATS,
        section="KV cache",
        automatic="auto",
        choices=(*_choices(KVDtype), "k=...,v=..."),
        help="How K and V are stored, both alike or apart as in k=int8,v=int4; auto is int8 with the compiled kernels, "
        "else bf16.",
    ),
    Flag(
        name="kv_retention",
        path="cache.kv_retention",
        kind=FlagKind.RETENTION,
        section="KV cache",
        choices=("full", "window:sinks=N,window=N"),
        help="Which tokens are kept: all, or the first N and the last N, rounded up to whole blocks; the blocks of the "
        "others are given back. Layers with a window of their own keep that.",
    ),
    Flag(
        name="head_profile",
        path="cache.head_profile",
        kind=FlagKind.TEXT,
        section="KV cache",
        automatic="none",
        help="A file of `kvasir calibrate` that says for every head what it keeps and how, in the place of "
        "--kv-cache-dtype and --kv-retention; 'default' is that of the embedded model.",
    ),
    Flag(
        name="block_size",
        path="cache.block_size",
        kind=FlagKind.CHOICE,
        section="KV cache",
        choices=tuple(map(str, BLOCK_SIZES)),
        help="Token slots of one block.",
    ),
    Flag(
        name="enable_prefix_caching",
        path="cache.enable_prefix_caching",
        kind=FlagKind.SWITCH,
        section="KV cache",
        help="Keep the blocks of finished requests findable, so that a prompt that starts alike skips what it shares.",
    ),
    Flag(
        name="kv_allocation",
        path="cache.allocation",
        kind=FlagKind.CHOICE,
        section="KV cache",
        enum=AllocationKind,
        choices=_choices(AllocationKind),
        help="Blocks as needed, or max_model_len reserved per sequence (to compare with; needs prefix caching off).",
    ),
    Flag(
        name="kv_eviction",
        path="cache.eviction",
        kind=FlagKind.EVICTION,
        section="KV cache",
        automatic="off",
        choices=("keydiff:keep=0.5", "random:keep=0.5,seed=0"),
        help="Drop part of each prompt's K and V once it is computed, every head its own choice; also sinks=, recent=.",
    ),
    Flag(
        name="kv_sparse_read",
        path="cache.sparse_read",
        kind=FlagKind.SPARSE_READ,
        section="KV cache",
        automatic="off",
        choices=("blocks=64",),
        help="Decode steps read so many blocks of each head's cache, the likeliest; saves time, not memory.",
    ),
    Flag(
        name="max_num_seqs",
        path="scheduler.max_num_seqs",
        kind=FlagKind.INTEGER,
        section="Scheduling",
        help="Sequences that run at once.",
    ),
    Flag(
        name="max_num_batched_tokens",
        path="scheduler.max_num_batched_tokens",
        kind=FlagKind.INTEGER,
        section="Scheduling",
        help="Tokens of one step, prompts and outputs together; longer prompts are computed in chunks.",
    ),
    Flag(
        name="long_prefill_token_threshold",
        path="scheduler.long_prefill_token_threshold",
        kind=FlagKind.INTEGER,
        section="Scheduling",
        minimum=0,
        help="The most tokens of a step one prompt takes while there are several; 0 leaves it to the fair share.",
    ),
    Flag(
        name="scheduling_policy",
        path="scheduler.policy",
        kind=FlagKind.CHOICE,
        section="Scheduling",
        enum=QueuePolicy,
        choices=_choices(QueuePolicy),
        help="First come first served, or by each request's priority (lower runs earlier).",
    ),
    Flag(
        name="scheduling",
        path="scheduler.batching",
        kind=FlagKind.CHOICE,
        section="Scheduling",
        enum=BatchingMode,
        choices=_choices(BatchingMode),
        help="Join and leave the batch at every step, or fill it once and wait for its slowest (to compare with).",
    ),
    Flag(
        name="max_waiting",
        path="scheduler.max_waiting",
        kind=FlagKind.INTEGER,
        section="Scheduling",
        minimum=0,
        help="Requests that may wait before new ones are refused as overloaded.",
    ),
    Flag(
        name="kernels",
        path="kernels",
        kind=FlagKind.CHOICE,
        section="Computing",
        enum=KernelChoice,
        choices=_choices(KernelChoice),
        help="Compiled kernels, or the slow reference in plain torch; auto takes the compiled ones if they were built.",
    ),
    Flag(
        name="threads",
        path="threads",
        kind=FlagKind.INTEGER,
        section="Computing",
        automatic="auto",
        minimum=1,
        help="Threads to compute with; auto is all cores this process may use.",
    ),
)

_BY_NAME: dict[str, Flag] = {name: flag for flag in FLAGS for name in (flag.name, *flag.aliases)}


def make_engine_config(**flags: FlagValue | None) -> EngineConfig:
    """The configuration that ``flags`` (names of ``FLAGS`` or their aliases) ask for; None means not given.

    Raises ``ConfigError`` for an unknown name, a value that is not one, and settings that contradict each other.
    """
    given: dict[str, Any] = {}
    for name, value in flags.items():
        flag = _BY_NAME.get(name)
        if flag is None:
            raise ConfigError(_unknown(name))
        if value is None:
            continue
        if flag.name in given:
            raise ConfigError(f"{flag.option} was given twice, once as {name}; give it once.")
        given[flag.name] = flag.parse(value)
    if given.get("kv_cache_memory") is not None and "memory_utilization" in given:
        raise ConfigError("--kv-cache-memory and --memory-utilization both size the KV pool; give one of them.")
    tree: dict[str, Any] = {}
    for name, parsed in given.items():
        *branches, leaf = _BY_NAME[name].path.split(".")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[leaf] = parsed
    return _replace_tree(EngineConfig(), tree)


def effective_flags(config: EngineConfig) -> dict[str, str]:
    """Every flag by name with the value it has in ``config``, as a person would write it.

    What a head profile decides is said to be its own."""
    shown = {flag.name: flag.show(read_path(config, flag.path)) for flag in FLAGS}
    if config.cache.head_profile is not None:
        shown |= dict.fromkeys(("kv_cache_dtype", "kv_retention"), "by head")
    return shown


def flags_table() -> str:
    """All flags as a Markdown table, for the documents."""
    lines = ["| flag | values | default | what it does |", "|---|---|---|---|"]
    for flag in FLAGS:
        values = ", ".join(flag.choices) or flag.kind.value
        lines.append(f"| `{flag.option}` | {values} | {flag.default_text} | {flag.help} |")
    return "\n".join(lines) + "\n"


def _replace_tree(value: Any, tree: Mapping[str, Any]) -> Any:
    """``value`` with the leaves of ``tree`` put in.  A dataclass changes all at once, so its checks see the whole."""
    changes = {
        name: _replace_tree(getattr(value, name), leaf) if isinstance(leaf, dict) else leaf
        for name, leaf in tree.items()
    }
    return replace(value, **changes)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(flag.name for flag in FLAGS)}."
    return f"There is no flag {name!r}; {hint}"
