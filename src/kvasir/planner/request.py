"""What is asked of the planner, parsed: model, formats, load, engine, machine; one frozen value."""

from dataclasses import dataclass, field

from kvasir.core.errors import ConfigError
from kvasir.engine.config import EngineConfig
from kvasir.engine.memory import MemoryLimits
from kvasir.models.config import ModelConfig
from kvasir.models.cost import ModelCost
from kvasir.planner.engines import DEFAULT_VERSIONS, EngineName
from kvasir.planner.kv_groups import AnyDtype
from kvasir.planner.lengths import LengthDistribution
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.startup_log import StartLog
from kvasir.planner.weight_formats import WEIGHT_FORMATS, WeightFormat, stored_or_reckoned_bytes

UNCALIBRATED_SAFETY = 0.7
"""Share of the reckoned sequences that is planned with while the overhead is an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``users`` sequences run at once; prompts come behind ``shared_prefix`` tokens that all have in common."""

    users: int
    prompts: LengthDistribution
    outputs: LengthDistribution
    shared_prefix: int = 0
    max_tpot_s: float | None = None

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ConfigError(f"--users must be at least 1, got {self.users}.")
        if self.shared_prefix < 0:
            raise ConfigError(f"--shared-prefix must be at least 0, got {self.shared_prefix}.")

    @property
    def hit_rate(self) -> float:
        """Share of a mean prompt that the shared prefix answers from the cache."""
        return self.shared_prefix / (self.shared_prefix + self.prompts.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine is told; a None is the engine's own default."""

    engine: EngineName
    version: str = ""
    max_model_len: int
    tensor_parallel: int | None = None
    utilization: float | None = None
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_model_len < 2:
            raise ConfigError(f"--context must be at least 2 tokens, got {self.max_model_len}.")
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise ConfigError(f"--memory-utilization must be above 0 and at most 1, got {self.utilization}.")
        if self.tensor_parallel is not None and self.tensor_parallel < 1:
            raise ConfigError(f"--tp must be at least 1, got {self.tensor_parallel}.")

    @property
    def effective_version(self) -> str:
        return self.version or DEFAULT_VERSIONS[self.engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """What our engine needs to plan for itself: its config of the model, its flags, and the memory it may use."""

    config: ModelConfig
    engine: EngineConfig
    limits: MemoryLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """``own`` is None where our engine does not serve the model.  ``log`` replaces estimated overheads."""

    shape: ModelShape
    weights: WeightFormat
    k_dtype: AnyDtype
    v_dtype: AnyDtype
    load: Load
    settings: EngineSettings
    log: StartLog | None = None
    own: OwnModel | None = None
    safety: float | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def weight_bytes(self) -> int:
        """Of our engine, what its weights will take exactly; else what the files hold or the format makes of them."""
        if self.settings.engine is EngineName.KVASIR and self.own is not None:
            return ModelCost(config=self.own.config, weight_dtype=self.own.engine.weight_dtype).weight_bytes
        return stored_or_reckoned_bytes(self.shape, self.weights)

    @property
    def max_num_seqs(self) -> int | None:
        """The engine's limit of sequences at once, where it is told or is our own."""
        if self.settings.engine is EngineName.KVASIR and self.own is not None:
            return self.own.engine.scheduler.max_num_seqs
        return self.settings.max_num_seqs

    @property
    def effective_safety(self) -> float:
        """1 where nothing is estimated: our own allocator, or an overhead from a log."""
        if self.safety is not None:
            return self.safety
        is_measured = self.settings.engine is EngineName.KVASIR or (self.log is not None and self.log.kv_bytes)
        return 1.0 if is_measured else UNCALIBRATED_SAFETY


def weight_format_of(shape: ModelShape) -> WeightFormat:
    """The format the model's files are in; of a GGUF file, the mean bits of its tensors."""
    if shape.weight_format in WEIGHT_FORMATS:
        return WEIGHT_FORMATS[shape.weight_format]
    assert shape.stored_weight_bytes is not None
    bits = 8 * shape.stored_weight_bytes / shape.num_parameters
    return WeightFormat(name=shape.weight_format, bits=bits, head_bits=bits)
