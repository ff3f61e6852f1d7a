"""Fitted step costs as a file: constants, how well they fit, and the engine they were measured on."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from kvasir.core.errors import ConfigError
from kvasir.simulator.calibration import Fit
from kvasir.simulator.step_cost import FittedStepCost

_MARK = "kvasir_step_costs"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDeployment:
    """What was probed, so that later runs can simulate the same without being told again.  ``num_blocks`` per group;
    None where a client cannot know."""

    model: str
    machine: str
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_blocks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFile:
    cost: FittedStepCost
    deployment: ProbedDeployment
    error: float
    errors: dict[str, float]
    num_observations: int
    date: str

    @classmethod
    def of(cls, fit: Fit, deployment: ProbedDeployment) -> Self:
        return cls(
            cost=fit.cost,
            deployment=deployment,
            error=fit.error,
            errors=fit.errors,
            num_observations=fit.num_observations,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            _MARK: _VERSION,
            "date": self.date,
            "constants": self.cost.to_json(),
            "fit": {
                "median_error": self.error,
                "median_error_by_load": self.errors,
                "num_observations": self.num_observations,
            },
            "deployment": asdict(self.deployment),
        }

    def write(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"The step costs cannot be written to {path} ({error.strerror or error}).") from error


def read_cost_file(path: Path) -> CostFile:
    """Raises ``ConfigError`` when it is not what ``kvasir simulate --calibrate`` writes."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The step costs {path} cannot be read ({error}).") from error
    if not isinstance(values, dict) or values.get(_MARK) != _VERSION:
        raise ConfigError(f"{path} holds no step costs; `kvasir simulate --calibrate` writes such a file.")
    try:
        deployment = dict(values["deployment"])
        blocks = deployment.pop("num_blocks")
        return CostFile(
            cost=FittedStepCost.from_json(values["constants"]),
            deployment=ProbedDeployment(num_blocks=None if blocks is None else tuple(blocks), **deployment),
            error=float(values["fit"]["median_error"]),
            errors=dict(values["fit"]["median_error_by_load"]),
            num_observations=int(values["fit"]["num_observations"]),
            date=str(values["date"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"The step costs {path} are damaged ({error!r}).") from error
