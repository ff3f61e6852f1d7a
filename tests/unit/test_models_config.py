"""Foreign configs: what real ones mean, what two spellings share, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import ModelError
from kvasir.models.config import ModelConfig, RopeKind, load_config

LLAMA_3_2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
MISTRAL_V01: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN2_5: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_llama() -> None:
    config = ModelConfig.from_hf(LLAMA_3_2)
    assert (config.architecture, config.num_layers, config.num_heads, config.num_kv_heads) == ("llama", 16, 32, 8)
    assert (config.head_dim, config.tie_word_embeddings, config.rms_norm_eps) == (64, True, 1e-5)
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.torch_dtype == "bfloat16"
    rope = config.rope
    assert (rope.kind, rope.theta, rope.factor) == (RopeKind.LLAMA3, 500000.0, 32.0)
    assert (rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position) == (1.0, 4.0, 8192)
    assert config.max_context == 131072
    assert config.geometry.sliding_windows == (None,) * 16
    assert not (config.has_qkv_bias or config.has_output_bias or config.has_mlp_bias or config.has_qk_norm)


def test_mistral_windows() -> None:
    config = ModelConfig.from_hf(MISTRAL_V01)
    assert config.sliding_windows == (4096,) * 32
    assert config.head_dim == 128
    assert ModelConfig.from_hf(MISTRAL_V01 | {"sliding_window": None}).sliding_windows == (None,) * 32
    without = {name: value for name, value in MISTRAL_V01.items() if name != "sliding_window"}
    assert ModelConfig.from_hf(without).sliding_windows == (4096,) * 32


def test_qwen2_windows() -> None:
    assert ModelConfig.from_hf(QWEN2_5).sliding_windows == (None,) * 24
    windowed = QWEN2_5 | {"use_sliding_window": True}
    assert ModelConfig.from_hf(windowed).sliding_windows == (None,) * 21 + (32768,) * 3
    assert ModelConfig.from_hf(windowed | {"max_window_layers": 0}).sliding_windows == (32768,) * 24
    config = ModelConfig.from_hf(QWEN2_5)
    assert (config.has_qkv_bias, config.has_output_bias, config.head_dim) == (True, False, 64)


def test_qwen3() -> None:
    config = ModelConfig.from_hf(QWEN3)
    assert (config.has_qk_norm, config.has_qkv_bias, config.head_dim) == (True, False, 128)
    assert config.num_heads * config.head_dim != config.hidden_size
    without = {name: value for name, value in QWEN3.items() if name != "head_dim"}
    assert ModelConfig.from_hf(without).head_dim == 128
    assert ModelConfig.from_hf(QWEN3 | {"attention_bias": True}).has_output_bias
    types = ["full_attention", "sliding_attention"] * 14
    windowed = QWEN3 | {"use_sliding_window": True, "sliding_window": 512, "layer_types": types}
    assert ModelConfig.from_hf(windowed).sliding_windows == (None, 512) * 14


def test_yarn_as_qwen_writes_it() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = ModelConfig.from_hf(QWEN2_5 | {"rope_scaling": scaling})
    assert config.rope.kind is RopeKind.YARN
    assert config.rope.attention_factor == pytest.approx(1.1386294361)
    assert config.max_position_embeddings == 32768
    assert config.max_context == 131072


@pytest.mark.parametrize("type_name", ["type", "rope_type"])
@pytest.mark.parametrize(
    "scaling",
    [
        {"kind": "linear", "factor": 2.0},
        {"kind": "dynamic", "factor": 2.0},
        {"kind": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16},
        {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ],
    ids=lambda scaling: scaling["kind"],
)
def test_both_forms_of_rope_mean_the_same(scaling: dict[str, Any], type_name: str) -> None:
    entries = {type_name if name == "kind" else name: value for name, value in scaling.items()}
    plain = {name: value for name, value in LLAMA_3_2.items() if name not in ("rope_scaling", "rope_theta")}
    before = ModelConfig.from_hf(plain | {"rope_theta": 7000.0, "rope_scaling": entries})
    after = ModelConfig.from_hf(plain | {"rope_parameters": entries | {"rope_theta": 7000.0}})
    assert before == after
    assert before.rope.kind.value == scaling["kind"]
    assert before.rope.theta == 7000.0


def test_an_absent_entry_means_what_it_means_in_transformers() -> None:
    needed = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    needed += ("num_attention_heads", "max_position_embeddings")
    config = ModelConfig.from_hf({name: LLAMA_3_2[name] for name in needed})
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps) == (32, 64, 1e-6)
    assert (config.rope.kind, config.rope.theta) == (RopeKind.DEFAULT, 10000.0)
    assert (config.tie_word_embeddings, config.bos_token_id, config.eos_token_ids) == (False, None, ())
    for name in needed:
        with pytest.raises(ModelError, match="None" if name == "model_type" else f"no {name}"):
            ModelConfig.from_hf({other: LLAMA_3_2[other] for other in needed if other != name})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"model_type": "gemma3"}, "'gemma3' is not served; served are llama, mistral, qwen2, qwen3"),
    "architecture-list": ({"model_type": ["llama"]}, "is not served; served are llama"),
    "class": ({"architectures": ["LlamaForSequenceClassification"]}, "only LlamaForCausalLM is served"),
    "rope-type": ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not served; .*yarn"),
    "rope-no-type": ({"rope_scaling": {"factor": 2.0}}, "names no rope_type but has factor"),
    "rope-no-factor": ({"rope_scaling": {"type": "linear"}}, "rope_scaling of config.json has no factor"),
    "rope-factor": ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor = 0.5; it must be at least 1"),
    "rope-extra": ({"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}}, "alpha = 1000.0"),
    "rope-no-object": ({"rope_scaling": "yarn"}, "it must be an object or null"),
    "rope-two": ({"rope_parameters": {"rope_type": "default"}}, "both rope_scaling and rope_parameters"),
    "rope-per-layer": (
        {"rope_scaling": None, "rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "names no rope_type but has full_attention",
    ),
    "llama3-order": (
        {"rope_scaling": LLAMA_3_2["rope_scaling"] | {"high_freq_factor": 1.0}},
        "high_freq_factor = 1.0, which must be above low_freq_factor = 1.0",
    ),
    "dynamic-original": (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4096}},
        "4096; with dynamic RoPE it must equal max_position_embeddings, which is 131072",
    ),
    "partial-rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5; only 1.0 is served"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantised with 'gptq', which is not read"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu'; served is only 'silu', 'swish'"),
    "softcap": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0; served is only null"),
    "multiplier": ({"residual_multiplier": 0.22}, "residual_multiplier = 0.22"),
    "interleaved": ({"rope_interleaved": True}, "rope_interleaved = True"),
    "heads": ({"num_key_value_heads": 5}, "32 attention heads, which 5 key/value heads cannot share"),
    "head-dim": ({"head_dim": None, "num_attention_heads": 24}, "2048 is not a multiple of 24 heads"),
    "odd-head-dim": ({"head_dim": 63}, "head_dim = 63; RoPE needs an even number"),
    "text-number": ({"hidden_size": "2048"}, "hidden_size = '2048'; it must be a whole number above 0"),
    "bool-number": ({"num_hidden_layers": True}, "num_hidden_layers = True"),
    "zero": ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    "eps": ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan; it must be a number above 0"),
    "flag": ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'; it must be true or false"),
    "eos": ({"eos_token_id": "</s>"}, "eos_token_id = '</s>'; it must be a token id"),
    "window": ({"sliding_window": 4096}, "sliding_window = 4096, which the architecture does not know"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_of_llama(name: str) -> None:
    entries, sentence = REFUSED[name]
    with pytest.raises(ModelError, match=sentence) as caught:
        ModelConfig.from_hf(LLAMA_3_2 | entries)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_refusals_of_windows() -> None:
    with pytest.raises(ModelError, match="in mistral all layers are alike"):
        ModelConfig.from_hf(MISTRAL_V01 | {"layer_types": ["full_attention", "sliding_attention"] * 16})
    with pytest.raises(ModelError, match="layer type 'chunked_attention' is not served"):
        ModelConfig.from_hf(QWEN3 | {"layer_types": ["chunked_attention"] * 28})
    with pytest.raises(ModelError, match="but no window is switched on"):
        ModelConfig.from_hf(QWEN3 | {"layer_types": ["sliding_attention"] * 28})
    with pytest.raises(ModelError, match="must list one type for each layer"):
        ModelConfig.from_hf(QWEN3 | {"layer_types": ["full_attention"]})


def test_a_folder_adds_the_end_of_turn_of_its_generation_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_5))
    assert load_config(tmp_path).eos_token_ids == (151645,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [151645, 151643]}))
    assert load_config(tmp_path).eos_token_ids == (151645, 151643)


def test_unreadable_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds no JSON object"):
        load_config(tmp_path)


def test_configs_and_costs_need_no_torch() -> None:
    modules = ("config", "families", "cost", "digest", "parameters", "safetensors_folder")
    code = "import sys\n" + "".join(f"import kvasir.models.{module}\n" for module in modules)
    code += "from kvasir.models.registry import ARCHITECTURES\n[a.load_reader() for a in ARCHITECTURES.values()]\n"
    code += "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
