"""Law 3: what ``kvasir plan`` says of our own server is what ``kvasir serve`` allocates, to the byte."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvasir.cli.plan_options import Asked, OwnAsked, RunAsked
from kvasir.cli.plan_request import build_plan, own_config, own_flags
from kvasir.core.errors import ConfigError
from kvasir.core.progress import no_progress
from kvasir.engine.assembly import EngineParts, LoadedModel, build, load_model
from kvasir.engine.memory import MemoryLimits
from kvasir.formats.constants import KVConstants
from kvasir.hardware.card import DeviceCard
from kvasir.hardware.this_machine import this_machine
from kvasir.kv.format_pair import FormatPair
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.spec import BLOCK_SIZES
from kvasir.models.config import ModelConfig, load_config
from kvasir.models.cost import ModelCost
from kvasir.models.parameters import parameter_shapes
from kvasir.models.resolve import ModelFolder
from kvasir.models.weight_dtype import WeightDtype
from kvasir.planner.engines import EngineName
from kvasir.planner.instance import Instance, plan_instance
from kvasir.planner.lengths import parse_lengths
from kvasir.planner.report_json import plan_json
from kvasir.planner.request import EngineSettings, Load, OwnModel, PlanRequest, weight_format_of
from kvasir.planner.sources import find_model, model_card_config

MIB = 1 << 20
LIMITS = MemoryLimits(total_bytes=1600 * MIB, available_bytes=1200 * MIB, source="a small machine")
BASE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 128,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}
MODELS: dict[str, dict[str, Any]] = {
    "full": {**BASE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "sliding": {**BASE, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 100},
    "both": {
        **BASE,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 72,
        "max_window_layers": 1,
    },
}
RETENTIONS = ("full", "window:sinks=4,window=40", "window:window=100")
PAIRS = [FormatPair(k=k, v=v) for k, v in itertools.product(KVDtype, KVDtype)]
SAMPLE = [*(FormatPair(k=dtype, v=dtype) for dtype in KVDtype), FormatPair(k=KVDtype.INT8, v=KVDtype.INT4)]
BUDGETS: dict[str, dict[str, Any]] = {
    "3MiB": {"kv_cache_memory": "3MiB"},
    "7777777 bytes": {"kv_cache_memory": "7777777"},
    "0.4444": {"memory_utilization": 0.4444},
    "0.42": {"memory_utilization": 0.42},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random model of each kind, in Hugging Face layout."""
    found = {}
    torch.manual_seed(0)
    for name, values in MODELS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps(values))
        shapes = parameter_shapes(ModelConfig.from_hf(values))
        save_file({key: torch.randn(shape) * 0.05 for key, shape in shapes.items()}, folder / "model.safetensors")
        found[name] = folder
    return found


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> dict[str, LoadedModel]:
    return {
        name: load_model(ModelFolder(name=name, path=folder), load_config(folder), WeightDtype.INT8, no_progress)
        for name, folder in folders.items()
    }


def small_machine() -> DeviceCard:
    return this_machine(
        memory_bytes=LIMITS.total_bytes, bandwidth_bytes_per_s=1e10, flops=1e11, int8_ops=4e11, source="test"
    )


def asked(folder: Path, *, own: dict[str, Any] | None = None, **flags: Any) -> Asked:
    """``own``: flags that other engines do not have."""
    return Asked(model=str(folder), run=RunAsked(engine="kvasir", **flags), own=OwnAsked(flags=own or {}))


def planned(folder: Path, **flags: Any) -> Instance:
    """The planner's answer with the limits of the small machine."""
    given = asked(folder, **flags)
    shape = find_model(str(folder), lambda *_: None)
    own = OwnModel(config=own_config(str(folder)), engine=own_flags(given), limits=LIMITS)
    request = PlanRequest(
        shape=shape,
        weights=weight_format_of(shape),
        k_dtype=KVDtype.BF16,
        v_dtype=KVDtype.BF16,
        load=Load(users=1, prompts=parse_lengths("100"), outputs=parse_lengths("50")),
        settings=EngineSettings(engine=EngineName.KVASIR, max_model_len=shape.max_context),
        own=own,
    )
    return plan_instance(request, small_machine(), 1)


def served(model: LoadedModel, folder: Path, **flags: Any) -> EngineParts:
    """What the server's own assembly allocates, with the flags it would be given."""
    geometry = model.model_config.geometry
    scales = torch.ones(geometry.num_layers, geometry.num_kv_heads)
    constants = KVConstants(k_scale=scales, v_scale=scales)
    return build(model, own_flags(asked(folder, **flags)), LIMITS, constants=constants)


def allocated_bytes(parts: EngineParts) -> int:
    """Bytes of the tensors that are really there."""
    store = parts.executor._store  # type: ignore[attr-defined]
    tensors = [t for group in range(len(store.layout.groups)) for t in store.group_tensors(group)]
    assert tensors
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    ("kind", "dtype", "block_size", "budget"),
    list(itertools.product(MODELS, map(str, SAMPLE), BLOCK_SIZES, BUDGETS))
    + list(itertools.product(["both"], map(str, PAIRS), [16], ["3MiB"])),
)
def test_the_pool_is_the_planned_one(folders, loaded, kind, dtype, block_size, budget):
    flags = {"kv_cache_dtype": dtype, "block_size": block_size, "max_num_batched_tokens": 128, **BUDGETS[budget]}
    flags |= {"max_model_len": 200}
    instance = planned(folders[kind], **flags)
    parts = served(loaded[kind], folders[kind], **flags)
    assert instance.pool.num_blocks == parts.memory.num_blocks
    assert instance.pool.num_bytes == parts.memory.pool_bytes == allocated_bytes(parts)
    assert instance.budget.weight_bytes == parts.weights_bytes
    assert instance.pool.printed_tokens == parts.memory.num_tokens
    assert instance.pool.printed_concurrency == parts.memory.max_concurrency


@pytest.mark.parametrize(
    ("kind", "retention", "block_size", "budget"),
    list(itertools.product(("full", "both"), RETENTIONS, BLOCK_SIZES, BUDGETS)),
)
def test_the_pool_of_windows_is_the_planned_one(folders, loaded, kind, retention, block_size, budget):
    flags = {"kv_cache_dtype": "bf16", "block_size": block_size, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    flags |= {"max_model_len": 1000, **BUDGETS[budget]}
    instance = planned(folders[kind], own={"kv_retention": retention}, **flags)
    parts = served(loaded[kind], folders[kind], own={"kv_retention": retention}, **flags)
    layout = parts.manager.config.layout
    assert instance.own is not None and instance.own.layout.digest == layout.digest
    assert instance.pool.num_blocks == parts.memory.num_blocks
    assert instance.pool.num_bytes == parts.memory.pool_bytes == allocated_bytes(parts)
    assert instance.pool.printed_concurrency == parts.memory.max_concurrency
    assert instance.pool.num_sequences(1000) == pytest.approx(parts.memory.max_concurrency)
    rules = {str(spec.retention) for spec in layout.groups}
    assert str(parts.config.cache.kv_retention) in rules


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("weight_dtype", list(WeightDtype), ids=lambda dtype: dtype.value)
def test_the_weights_are_the_planned_ones(folders, kind, weight_dtype):
    model = load_model(
        ModelFolder(name=kind, path=folders[kind]), load_config(folders[kind]), weight_dtype, no_progress
    )
    flags = {"weight_dtype": weight_dtype.value, "max_num_batched_tokens": 64, "memory_utilization": 0.42}
    instance = planned(folders[kind], **flags)
    assert instance.budget.weight_bytes == model.weights.num_bytes
    assert instance.pool.num_bytes == allocated_bytes(served(model, folders[kind], **flags))


@pytest.mark.parametrize(
    "flags",
    [
        {"max_model_len": 5000},
        {"kv_cache_memory": "1KiB"},
        {"kv_cache_memory": "900GiB"},
        {"memory_utilization": 0.01},
        {"own": {"kv_retention": "window:window=64", "kv_allocation": "contiguous", "enable_prefix_caching": False}},
        {"own": {"kv_retention": "window:window=64"}, "kind": "sliding"},
    ],
    ids=lambda flags: str(next(iter(flags.items()))),
)
def test_what_serve_refuses_plan_refuses_with_the_same_sentence(folders, loaded, flags):
    kind = flags.get("kind", "full")
    flags = {name: value for name, value in flags.items() if name != "kind"}
    with pytest.raises(ConfigError) as refused:
        served(loaded[kind], folders[kind], **flags)
    with pytest.raises(ConfigError) as planned_refusal:
        planned(folders[kind], **flags)
    assert str(planned_refusal.value) == str(refused.value)


def test_the_command_line_says_what_the_store_takes(folders, loaded, monkeypatch):
    """From options to JSON, without a probe of the machine."""
    card = this_machine(
        memory_bytes=LIMITS.total_bytes, bandwidth_bytes_per_s=1e10, flops=1e11, int8_ops=4e11, source="t"
    )
    monkeypatch.setattr("kvasir.cli.plan_request._measure", lambda: card)
    monkeypatch.setattr("kvasir.cli.plan_request.available_memory", lambda: LIMITS)
    flags = {"kv_cache_memory": "5MiB", "block_size": 32, "max_num_batched_tokens": 64}
    said = plan_json(build_plan(asked(folders["both"], **flags)))
    parts = served(loaded["both"], folders["both"], **flags)
    assert said["chosen"]["pool"]["num_bytes"] == allocated_bytes(parts)
    assert said["chosen"]["pool"]["num_blocks"] == list(parts.memory.num_blocks)
    (command,) = (entry["command"] for entry in said["commands"] if entry["engine"] == "kvasir")
    assert f"--kv-cache-memory {allocated_bytes(parts)}" in command


def test_the_built_in_card_is_the_embedded_model(demo_model):
    """``kvasir plan demo`` reads the card, ``kvasir serve demo`` the converted folder."""
    card = model_card_config("demo")
    assert card is not None
    ours, real = ModelConfig.from_hf(card), load_config(demo_model)
    assert ours.geometry == real.geometry
    assert ours.max_position_embeddings == real.max_position_embeddings
    for dtype in WeightDtype:
        cost = ModelCost(config=ours, weight_dtype=dtype).weight_bytes
        assert cost == ModelCost(config=real, weight_dtype=dtype).weight_bytes


@pytest.mark.parametrize("budget", ["64MiB", "99999999"])
def test_the_pool_of_a_head_profile_is_the_planned_one(demo_model, budget):
    """The profile that ships for the embedded model: groups by head, a few of them full."""
    model = load_model(
        ModelFolder(name="demo", path=demo_model), load_config(demo_model), WeightDtype.INT8, no_progress
    )
    flags: dict[str, Any] = {"own": {"head_profile": "default"}, "kv_cache_memory": budget, "max_num_seqs": 2}
    instance = planned(demo_model, **flags)
    parts = build(model, own_flags(asked(demo_model, **flags)), LIMITS)
    assert len(parts.manager.config.layout.groups) > 1
    assert instance.pool.num_blocks == parts.memory.num_blocks
    assert instance.pool.num_bytes == parts.memory.pool_bytes == allocated_bytes(parts)
