"""Everything one load test is told, parsed and checked once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kvasir.core.errors import ConfigError
from kvasir.loadtest.prompt_maker import PromptKind
from kvasir.loadtest.target import Api, BodyOptions, Target
from kvasir.workload.arrivals import ArrivalProcess
from kvasir.workload.latency import PERCENTILES, Slo
from kvasir.workload.lengths import LengthRange
from kvasir.workload.traces.read import TraceFormat

DEFAULT_TOKEN_IDS = (1000, 20_000)
"""Ordinary tokens in every common vocabulary."""


class WorkloadKind(Enum):
    RANDOM = "random"
    SHARED_PREFIX = "shared-prefix"
    CHAT = "chat"
    FILE = "file"
    TRACE = "trace"

    @property
    def needs_file(self) -> bool:
        return self in (WorkloadKind.FILE, WorkloadKind.TRACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    target: Target
    model: str | None = None
    body: BodyOptions = field(default_factory=BodyOptions)
    timeout_s: float = 600.0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """``output_tokens`` None: as recorded (files and traces).  ``max_context`` None: what the server says.
    ``token_ids``: the range of random ids."""

    kind: WorkloadKind = WorkloadKind.RANDOM
    prompt_tokens: LengthRange = field(default_factory=lambda: LengthRange(low=512, high=512))
    output_tokens: LengthRange | None = None
    prompts: PromptKind = PromptKind.TOKENS
    prefix_tokens: int = 1024
    num_prefixes: int = 1
    num_turns: int = 1
    system_tokens: int = 0
    think_s: float = 0.0
    path: Path | None = None
    trace_format: TraceFormat | None = None
    hash_block_size: int | None = None
    speed: float = 1.0
    follows_sessions: bool = False
    max_context: int | None = None
    token_ids: tuple[int, int] = DEFAULT_TOKEN_IDS

    def __post_init__(self) -> None:
        if self.kind.needs_file and self.path is None:
            raise ConfigError(f"The {self.kind.value} workload plays a file; say which one with --file.")
        if self.path is not None and not self.kind.needs_file:
            raise ConfigError(f"--file has no part in the {self.kind.value} workload; use --workload file or trace.")
        if self.prefix_tokens < 1 or self.num_prefixes < 1:
            raise ConfigError(
                f"Prompts can share {self.num_prefixes} prefixes of {self.prefix_tokens} tokens only if both are at "
                "least 1."
            )
        if self.prompts is PromptKind.WORDS and self.token_ids != DEFAULT_TOKEN_IDS:
            raise ConfigError("--token-ids has no part in prompts of words; use --prompts tokens.")
        low, high = self.token_ids
        if not 0 <= low < high:
            raise ConfigError(f"Random token ids need a range like 1000:20000, got {low}:{high}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How hard.  ``num_sessions`` None: everything a file holds, else 100.  ``uses_recorded_times``: arrivals are the
    trace's own, and ``arrivals`` plays no part."""

    arrivals: ArrivalProcess
    uses_recorded_times: bool = False
    max_concurrency: int | None = None
    num_sessions: int | None = None
    num_warmups: int = 2
    max_duration_s: float | None = None
    num_runs: int = 1
    seed: int = 0
    resets_prefix_cache: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("--max-concurrency", self.max_concurrency),
            ("--num-prompts", self.num_sessions),
            ("--duration", self.max_duration_s),
            ("--repeat", self.num_runs),
        ):
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be above 0, got {value:g}.")
        if self.num_warmups < 0:
            raise ConfigError(f"--num-warmups must be at least 0, got {self.num_warmups}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """``percentiles`` of every latency; ``metrics_interval_s`` None: /metrics is left alone."""

    slo: Slo = field(default_factory=Slo)
    percentiles: Sequence[float] = PERCENTILES
    metrics_interval_s: float | None = 1.0

    def __post_init__(self) -> None:
        if not all(0 < q < 100 for q in self.percentiles):
            raise ConfigError(f"Percentiles lie between 0 and 100, got {list(self.percentiles)}.")
        if self.metrics_interval_s is not None and self.metrics_interval_s <= 0:
            raise ConfigError(f"--metrics-interval must be above 0, got {self.metrics_interval_s:g}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestSettings:
    endpoint: EndpointSettings
    workload: WorkloadSettings
    load: LoadSettings
    measure: MeasureSettings

    def __post_init__(self) -> None:
        is_chat = self.endpoint.target.api is Api.CHAT
        if is_chat and self.workload.prompts is PromptKind.TOKENS:
            raise ConfigError("The chat route takes text, not token ids; use --prompts words.")
        if not is_chat and self.workload.kind is WorkloadKind.CHAT:
            raise ConfigError("The chat workload needs the chat route; use --endpoint chat.")
        if self.load.uses_recorded_times and self.workload.kind is not WorkloadKind.TRACE:
            raise ConfigError(f"The {self.workload.kind.value} workload has no recorded times; give a --request-rate.")
