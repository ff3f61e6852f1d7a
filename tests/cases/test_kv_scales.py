"""Real faults of other servers with the scales of a quantised cache, asked of ours."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvasir.core.errors import ConfigError
from kvasir.core.progress import no_progress
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.engine.assembly import LoadedModel, build, load_model
from kvasir.engine.engine import Engine
from kvasir.engine.flags import make_engine_config
from kvasir.engine.memory import MemoryLimits
from kvasir.formats.constants import KVConstants
from kvasir.models.config import ModelConfig, load_config
from kvasir.models.parameters import parameter_shapes
from kvasir.models.resolve import ModelFolder
from kvasir.models.weight_dtype import WeightDtype

LIMITS = MemoryLimits(total_bytes=1 << 30, available_bytes=1 << 30, source="test")
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 101,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(0)
    shapes = parameter_shapes(ModelConfig.from_hf(CONFIG))
    save_file({name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    return tmp_path


def load(folder: Path) -> LoadedModel:
    return load_model(ModelFolder(name="tiny", path=folder), load_config(folder), WeightDtype.INT8, no_progress)


def answer(loaded: LoadedModel, constants: KVConstants | None) -> tuple[list[int], str]:
    """Eight greedy tokens after 40, and the layout's digest."""
    flags = make_engine_config(kv_cache_dtype="fp8", kv_cache_memory="1MiB", max_num_batched_tokens=64, max_num_seqs=4)
    engine = Engine(build(loaded, flags, LIMITS, constants=constants))
    sampling = SamplingParams(max_tokens=8, temperature=0)
    engine.add_request(Request(request_id="a", prompt_token_ids=tuple(range(40)), sampling=sampling))
    tokens: list[int] = []
    while engine.has_work:
        for output in engine.step():
            tokens += getattr(output, "token_ids", ())
    digest = engine.layout.digest
    engine.close()
    return tokens, digest


def test_Q2_scales_outlive_the_weights_and_are_never_one(folder: Path) -> None:
    """Weights dropped and loaded again: the scales are given anew with them, and the answers are the same.  Without
    scales nothing starts; with others the cache has another name, so no block of the old ones is ever read."""
    scales = torch.tensor([[0.02, 0.03], [0.01, 0.05]])
    constants = KVConstants(k_scale=scales, v_scale=scales * 2)
    loaded = load(folder)
    before, digest = answer(loaded, constants)
    del loaded
    again = load(folder)
    assert answer(again, constants) == (before, digest)
    with pytest.raises(ConfigError, match=r"fp8 K needs calibrated scales.*kvasir calibrate.*--head-profile.*int8"):
        answer(again, None)
    with pytest.raises(ConfigError, match="fp8 V needs calibrated scales"):
        answer(again, KVConstants(k_scale=scales))
    assert answer(again, KVConstants(k_scale=scales, v_scale=scales))[1] != digest
