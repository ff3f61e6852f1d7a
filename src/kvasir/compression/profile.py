"""``HeadProfile``: how every head of one model is to be kept, and why; a versioned file.  No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvasir.core.errors import ConfigError
from kvasir.kv.head_group import HeadGroup
from kvasir.kv.layout import KVGeometry

FORMAT_NAME = "kvasir head profile"
VERSION = 1

HeadTable = tuple[tuple[float, ...], ...]
"""[layer][KV head]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantsFile:
    """Calibrated tensors beside the profile: file name in the same folder, and SHA-256 (hex) of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadProfile:
    """``groups`` partition the model's heads.  ``recipe`` says how they were found; ``scores`` are tables by name.

    ``model_digest`` is that of ``models.digest``: a profile fits one model and no other.  ``path`` is where it was read
    from, None when it was not.
    """

    model_name: str
    model_digest: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    groups: tuple[HeadGroup, ...]
    recipe: Mapping[str, Any]
    scores: Mapping[str, HeadTable]
    constants: ConstantsFile | None = None
    path: Path | None = field(default=None, compare=False)

    def check_model(self, digest: str) -> None:
        """Raises ``ConfigError`` when the profile was made for a model with another digest."""
        if digest != self.model_digest:
            raise ConfigError(
                f"The head profile {self.path or self.model_name} was made for {self.model_name} "
                f"({self.model_digest[:12]}), not for this model ({digest[:12]}); make one with "
                "`kvasir calibrate MODEL`."
            )

    def check_geometry(self, geometry: KVGeometry) -> None:
        """Raises ``ConfigError`` when the model's KV heads are not those of the profile."""
        ours = (self.num_layers, self.num_kv_heads, self.head_dim)
        theirs = (geometry.num_layers, geometry.num_kv_heads, geometry.head_dim)
        if ours != theirs:
            raise ConfigError(
                f"The head profile {self.path or self.model_name} is for {ours[0]} layers of {ours[1]} KV heads with "
                f"{ours[2]} channels, but this model has {theirs[0]} of {theirs[1]} with {theirs[2]}; make one with "
                "`kvasir calibrate MODEL`."
            )
