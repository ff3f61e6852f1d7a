"""Opens a lab: which models to load, one engine per setting around shared weights, texts to measure on."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress
from kvasir.engine.assembly import EngineParts, LoadedModel, build, load_model, make_layout
from kvasir.engine.config import EngineConfig
from kvasir.engine.flags import make_engine_config
from kvasir.engine.memory import MemoryLimits, available_memory
from kvasir.engine.pool_plan import effective_max_model_len
from kvasir.lab.controls import eviction_by_lot, has_chosen_heads, heads_at_random, one_window
from kvasir.lab.fault import Nudge
from kvasir.lab.lab import Lab
from kvasir.lab.measure import Size
from kvasir.lab.server_subject import ServerSubject
from kvasir.lab.setting import Setting
from kvasir.lab.subject import LocalSubject, Subject
from kvasir.lab.texts import FileTexts, NoTexts, SelfTexts, Texts, text_files
from kvasir.models.config import load_config
from kvasir.models.resolve import resolve_model
from kvasir.models.weight_dtype import WeightDtype

DEFAULT_REFERENCE: Mapping[str, str] = {"kv_cache_dtype": "bf16"}
"""What a saving is measured against: the whole cache in 16 bits."""

LEAST_CONTEXT = 512
"""Below it the tasks' questions alone fill the context."""
CONTEXTS = {Size.QUICK: 1024, Size.FULL: 4096}
_POOL_SEQUENCES = 3
"""How many sequences of the whole context the pool of each engine holds."""
_FLOOR_SCHEDULING = {"max_num_batched_tokens": "149", "max_num_seqs": "5"}
"""Chunks that end inside blocks, and other seats: the floor's batches are unlike the reference's."""
_LOT_SEED = 1
_MEMORY_FLAGS = {"kv_cache_memory", "kv_cache_memory_bytes", "memory_utilization", "gpu_memory_utilization"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """``shared`` are flags of every local setting and the reference; ``reference`` come on top for the reference.

    ``texts``: files to measure on; empty: those of KVASIR_DATA, else what the reference writes itself.
    """

    settings: tuple[Setting, ...]
    shared: Mapping[str, str] = field(default_factory=dict)
    reference: Mapping[str, str] = field(default_factory=lambda: DEFAULT_REFERENCE)
    texts: tuple[Path, ...] = ()
    size: Size = Size.QUICK

    @property
    def reference_name(self) -> str:
        return "16-bit" if self.reference == DEFAULT_REFERENCE else "reference"

    def __post_init__(self) -> None:
        if not self.settings:
            raise ConfigError("There is nothing to measure; give at least one --setting NAME=flag:value,...")
        reference = self.reference_name
        names = [reference, again(reference), nudged_name(reference), *(setting.name for setting in self.settings)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"The name {twice[0]!r} is taken; give every --setting a name of its own.")


def again(name: str) -> str:
    """What the floor is called: ``name`` run once more."""
    return f"{name} again"


def nudged_name(name: str) -> str:
    """What the least change is called: ``name`` with attention scores off by one part in a million."""
    return f"{name} nudged"


def open_lab(plan: LabPlan, progress: Progress = no_progress) -> Lab:
    """Load what runs here, connect to what does not.  Where all settings are servers and no model is named, none is
    loaded, and the first server is the reference.

    Raises ``ConfigError``, ``ModelError`` or ``ServerSubjectError``; nothing stays open then."""
    with ExitStack() as opened:
        if "model" in plan.shared or any(setting.is_local for setting in plan.settings):
            lab = _open_local(plan, progress, opened)
        else:
            lab = _open_servers(plan, progress, opened)
        opened.pop_all()
    return lab


def _open_local(plan: LabPlan, progress: Progress, opened: ExitStack) -> Lab:
    shelf = _Shelf(progress)
    context = _context(plan, shelf)
    shared = {**plan.shared, "max_model_len": str(context)}

    def local(setting: Setting, *, is_other_batch: bool = False) -> LocalSubject:
        parts = shelf.assemble({**shared, **setting.flags}, setting)
        subject = LocalSubject(setting.name, parts, is_other_batch=is_other_batch)
        opened.callback(subject.close)
        return subject

    name = plan.reference_name
    reference = local(Setting(name=name, flags=plan.reference))
    floor = local(Setting(name=again(name), flags={**plan.reference, **_FLOOR_SCHEDULING}), is_other_batch=True)
    nudged = local(Setting(name=nudged_name(name), flags=plan.reference, fault=Nudge()))
    settings: list[Subject] = []
    for setting in plan.settings:
        if not setting.is_local:
            settings.append(_server(setting, opened))
            continue
        subject = local(setting)
        settings += [subject, *(local(control) for control in _controls(setting, subject, context))]
    files = text_files(plan.texts)
    texts: Texts = FileTexts(files, reference.tokenizer) if files else SelfTexts(reference)
    return Lab(
        reference=reference,
        floor=floor,
        nudged=nudged,
        settings=settings,
        texts=texts,
        size=plan.size,
        context=context,
        progress=progress,
    )


def _controls(setting: Setting, subject: LocalSubject, context: int) -> list[Setting]:
    """Settings of the same bytes that choose nothing, where ``setting`` chooses heads."""
    layout, windows = subject.engine.layout, subject.engine.model_config.sliding_windows
    if (lots := eviction_by_lot(subject.engine.config.cache.eviction)) and setting.alter_layout is None:
        return [replace(setting, name=f"{setting.name}, by lot", flags={**setting.flags, "kv_eviction": str(lots)})]
    if setting.alter_layout is not None or not has_chosen_heads(layout, windows):
        return []
    controls = [
        replace(
            setting,
            name=f"{setting.name}, heads by lot",
            alter_layout=lambda chosen: heads_at_random(chosen, windows, _LOT_SEED),
        )
    ]
    narrowed = one_window(layout, windows, context)
    if narrowed is not None:
        controls.append(replace(setting, name=f"{setting.name}, one window", alter_layout=lambda _: narrowed))
    return controls


def _open_servers(plan: LabPlan, progress: Progress, opened: ExitStack) -> Lab:
    first, *others = plan.settings
    floor = Setting(name=again(first.name), base_url=first.base_url)
    return Lab(
        reference=_server(first, opened),
        floor=_server(floor, opened, is_other_batch=True),
        settings=[_server(setting, opened) for setting in others],
        texts=NoTexts(),
        size=plan.size,
        context=_checked_context(int(plan.shared.get("max_model_len") or CONTEXTS[plan.size])),
        progress=progress,
    )


def _server(setting: Setting, opened: ExitStack, *, is_other_batch: bool = False) -> ServerSubject:
    assert setting.base_url is not None
    subject = ServerSubject(setting.name, setting.base_url, is_other_batch=is_other_batch)
    opened.callback(subject.close)
    return subject


def _context(plan: LabPlan, shelf: "_Shelf") -> int:
    """What was asked for, else the size's own, never more than the model's."""
    config = make_engine_config(**{**plan.shared, **plan.reference})
    model_config = load_config(resolve_model(config.model, shelf.progress).path)
    most = effective_max_model_len(config, model_config)
    context = most if config.max_model_len is not None else min(most, CONTEXTS[plan.size])
    return _checked_context(context)


def _checked_context(context: int) -> int:
    if context < LEAST_CONTEXT:
        raise ConfigError(f"Measuring needs a context of at least {LEAST_CONTEXT} tokens, and it is {context}.")
    return context


class _Shelf:
    """Loaded models: settings that differ in the cache alone share their weights."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._limits = available_memory()
        self._pools_bytes = 0
        self._loaded: dict[tuple[str, WeightDtype], LoadedModel] = {}

    def assemble(self, flags: Mapping[str, str], setting: Setting) -> EngineParts:
        try:
            config = make_engine_config(**flags)
            loaded = self._model(config)
            if not _MEMORY_FLAGS & set(flags):
                config = make_engine_config(**flags, kv_cache_memory=_pool_bytes(loaded, config))
            wrap = None if setting.fault is None else setting.fault.wrap
            parts = build(
                loaded,
                config,
                self._limits_for(loaded),
                wrap_kernels=wrap,
                alter_layout=setting.alter_layout,
            )
        except ConfigError as error:
            raise ConfigError(f"Setting {setting.name!r}: {error}") from error
        self._pools_bytes += parts.memory.pool_bytes
        return parts

    def _limits_for(self, loaded: LoadedModel) -> MemoryLimits:
        """What is left beside the pools of earlier engines and the weights of other models."""
        others = sum(other.weights.num_bytes for other in self._loaded.values() if other is not loaded)
        left = max(0, self._limits.available_bytes - self._pools_bytes - others)
        return replace(self._limits, available_bytes=left)

    def _model(self, config: EngineConfig) -> LoadedModel:
        key = (config.model, config.weight_dtype)
        if key not in self._loaded:
            folder = resolve_model(config.model, self.progress)
            model_config = load_config(folder.path)
            self._loaded[key] = load_model(folder, model_config, config.weight_dtype, self.progress)
        return self._loaded[key]


def _pool_bytes(loaded: LoadedModel, config: EngineConfig) -> int:
    layout = make_layout(loaded.model_config, config.cache, config.kernels)
    tokens = _POOL_SEQUENCES * (config.max_model_len or 0) + layout.block_size * _POOL_SEQUENCES
    return round(layout.bytes_per_token * tokens)
