"""How long a context may be asked for: what the RoPE scaling was made for, and the model's own by default."""

from typing import Any

import pytest
from weight_folders import TINY

from kvasir.core.errors import ConfigError
from kvasir.engine.config import EngineConfig
from kvasir.engine.pool_plan import effective_max_model_len
from kvasir.models.config import ModelConfig

SCALINGS: dict[str, tuple[dict[str, Any] | None, int]] = {
    "default": (None, 64),
    "linear": ({"type": "linear", "factor": 2.0}, 64),
    "yarn": ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
    "yarn-extended-already": ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
    "dynamic": ({"type": "dynamic", "factor": 3.0}, 192),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_the_longest_context(name: str) -> None:
    scaling, longest = SCALINGS[name]
    model = ModelConfig.from_hf(TINY | {"rope_scaling": scaling})
    assert model.max_context == longest
    assert effective_max_model_len(EngineConfig(), model) == 64
    assert effective_max_model_len(EngineConfig(max_model_len=longest), model) == longest
    with pytest.raises(ConfigError, match=f"{longest + 1} is more than the model's longest context of {longest}"):
        effective_max_model_len(EngineConfig(max_model_len=longest + 1), model)
