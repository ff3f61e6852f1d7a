"""The engines that the demo compares: equal but for the one thing that is shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvasir.core.progress import Progress
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.engine.config import EngineConfig, MemoryConfig
from kvasir.kv.allocation import AllocationKind
from kvasir.scheduling.config import BatchingMode
from kvasir.workload.driver import play

if TYPE_CHECKING:
    from kvasir.engine.assembly import LoadedModel
    from kvasir.engine.engine import Engine

_CHAT_TOKENS = 8192
_LOAD_CONTEXT_TOKENS = 2048
_LOAD_POOL_TOKENS = 4 * _LOAD_CONTEXT_TOKENS
"""Enough for four sequences when each reserves its whole context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVariant:
    """What one side of a comparison changes in the person's configuration."""

    label: str
    max_model_len: int | None = None
    pool_tokens: int
    cache: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def engine(self, loaded: "LoadedModel", base: EngineConfig) -> "Iterator[Engine]":
        """A warm engine around ``loaded``, closed at the end.  Raises ``ConfigError``."""
        from kvasir.engine.assembly import build, make_layout
        from kvasir.engine.engine import Engine
        from kvasir.engine.memory import available_memory

        bytes_per_token = make_layout(loaded.model_config, base.cache, base.kernels).bytes_per_token
        memory = MemoryConfig(kv_cache_memory_bytes=round(self.pool_tokens * bytes_per_token))
        config = replace(
            base,
            max_model_len=self.max_model_len,
            cache=replace(base.cache, memory=memory, **self.cache),
            scheduler=replace(base.scheduler, **self.scheduler),
        )
        engine = Engine(build(loaded, config, available_memory()))
        try:
            _warm_up(engine)
            yield engine
        finally:
            engine.close()


def load_once(config: EngineConfig, progress: Progress) -> "LoadedModel":
    """The model that all variants share.  Raises ``ModelError``."""
    from kvasir.engine.assembly import load_model
    from kvasir.models.config import load_config
    from kvasir.models.resolve import resolve_model

    folder = resolve_model(config.model, progress)
    return load_model(folder, load_config(folder.path), config.weight_dtype, progress)


def _warm_up(engine: "Engine") -> None:
    """The first steps pay for thread pools and buffers; nobody measures those."""
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    play(engine, [Request(request_id="warm-up", prompt_token_ids=tuple(range(1, 65)), sampling=sampling)])
    engine.reset_prefix_cache()


CHAT_VARIANTS = {
    "off": DemoVariant(label="prefix caching off", pool_tokens=_CHAT_TOKENS, cache={"enable_prefix_caching": False}),
    "on": DemoVariant(label="prefix caching on", pool_tokens=_CHAT_TOKENS, cache={"enable_prefix_caching": True}),
}
_NO_SHARING = {"enable_prefix_caching": False}
LOAD_VARIANTS = {
    name: DemoVariant(
        label=name,
        max_model_len=_LOAD_CONTEXT_TOKENS,
        pool_tokens=_LOAD_POOL_TOKENS,
        cache=_NO_SHARING | {"allocation": allocation},
        scheduler={"batching": batching},
    )
    for name, allocation, batching in (
        ("paged, continuous", AllocationKind.PAGED, BatchingMode.CONTINUOUS),
        ("paged, static", AllocationKind.PAGED, BatchingMode.STATIC),
        ("contiguous, continuous", AllocationKind.CONTIGUOUS, BatchingMode.CONTINUOUS),
    )
}
"""The default first, then what it is compared with."""
