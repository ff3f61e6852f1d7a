"""Law 6: every pair of settings that shape the cache either works, and is in force, or is refused in one sentence."""

import itertools
import json
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvasir.core.errors import ConfigError
from kvasir.core.events import RequestFinishedEvent, TokensEvent
from kvasir.core.progress import no_progress
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.engine.assembly import LoadedModel, build, load_model
from kvasir.engine.engine import Engine
from kvasir.engine.flags import effective_flags, make_engine_config
from kvasir.engine.memory import available_memory
from kvasir.formats.constants import KVConstants
from kvasir.kv.format_spec import KVDtype
from kvasir.models.config import ModelConfig, load_config
from kvasir.models.parameters import parameter_shapes
from kvasir.models.resolve import ModelFolder
from kvasir.models.weight_dtype import WeightDtype

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
WINDOW, EVICTION = "window:sinks=4,window=20", "random:keep=0.5,sinks=2,recent=4,seed=0"
SETTINGS: list[dict[str, Any]] = [
    {"kv_retention": WINDOW},
    {"kv_eviction": EVICTION},
    {"kv_allocation": "contiguous", "enable_prefix_caching": False},
    {"kv_sparse_read": "blocks=3"},
    {"enable_prefix_caching": False},
    *({"kv_cache_dtype": dtype.value} for dtype in KVDtype),
    {"block_size": "32"},
    {"scheduling": "static"},
    {"scheduling_policy": "priority"},
    {"max_num_batched_tokens": 8},
    {"long_prefill_token_threshold": 5},
    {"kernels": "reference"},
    {"threads": 1},
]
REFUSED = [
    {"kv_retention", "kv_eviction"},
    {"kv_retention", "kv_allocation"},
    {"kv_retention", "kv_sparse_read"},
    {"kv_eviction", "kv_allocation"},
]
PAIRS = [
    pair
    for pair in itertools.combinations(SETTINGS, 2)
    if all(pair[0].get(name, value) == value for name, value in pair[1].items())
]
REQUESTS = [
    Request(
        request_id=f"r{i}",
        prompt_token_ids=tuple((7 * i + j) % 101 for j in range(length)),
        sampling=SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
    )
    for i, length in enumerate((90, 17, 90, 40))
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    (folder / "config.json").write_text(json.dumps(MODEL))
    shapes = parameter_shapes(ModelConfig.from_hf(MODEL))
    save_file({key: torch.randn(shape) * 0.1 for key, shape in shapes.items()}, folder / "model.safetensors")
    return load_model(ModelFolder(name="model", path=folder), load_config(folder), WeightDtype.INT8, no_progress)


def outputs(engine: Engine) -> dict[str, list[int]]:
    for request in REQUESTS:
        engine.add_request(request)
    found: dict[str, list[int]] = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokensEvent):
                found.setdefault(event.request_id, []).extend(event.token_ids)
            else:
                assert isinstance(event, RequestFinishedEvent) and event.error is None
    engine.audit()
    assert all(group.num_used == 0 for group in engine.stats().groups)
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_pair_works_or_is_refused(loaded: LoadedModel, pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    flags = {**pair[0], **pair[1]}
    config = make_engine_config(
        **{"kv_cache_memory": "4MiB", "max_num_batched_tokens": 64, "max_num_seqs": 4, "threads": 2, **flags}
    )
    names = next((names for names in REFUSED if names <= set(flags)), None)
    if names is not None:
        with pytest.raises(ConfigError) as refused:
            build(loaded, config, available_memory())
        assert all("--" + name.replace("_", "-") in str(refused.value) for name in names)
        return
    scales = torch.full((2, 1), 0.05)  # what fp8 cannot do without
    constants = KVConstants(k_scale=scales, v_scale=scales) if flags.get("kv_cache_dtype") == "fp8" else None
    engine = Engine(build(loaded, config, available_memory(), constants=constants))
    found = outputs(engine)
    assert all(len(tokens) == 30 for tokens in found.values()) and len(found) == len(REQUESTS)
    shown = effective_flags(engine.config)
    for name, value in flags.items():
        wanted = {"kv_retention": f"window:sinks={engine.layout.block_size},window=32", False: "off"}
        assert shown[name] == wanted.get(name, wanted.get(value, str(value)))
    stats = engine.stats()
    assert (sum(group.num_trimmed for group in stats.groups) > 0) == ("kv_retention" in flags)
    assert (stats.num_evicted_tokens > 0) == ("kv_eviction" in flags)
