"""Oracle: logits of tiny random models of every family, RoPE type and attention shape equal transformers'."""

from pathlib import Path
from typing import Any

import pytest
import torch
from paged import PagedSequences, all_logits
from tiny_models import ROPES, SHAPES, make_model, random_tokens
from torch import Tensor

from kvasir.core.errors import ConfigError
from kvasir.engine.config import KernelChoice, WeightDtype
from kvasir.kernels.interface import Kernels
from kvasir.kernels.select import make_kernels
from kvasir.models.config import load_config
from kvasir.models.decoder import Decoder
from kvasir.models.weights import load_weights

TOLERANCE = 1e-4
MAX_MODEL_LEN = 96


@pytest.fixture(params=[KernelChoice.REFERENCE, KernelChoice.CPU], ids=lambda choice: choice.value)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    try:
        return make_kernels(request.param, threads=1)
    except ConfigError as error:
        pytest.skip(str(error))


def load_decoder(folder: Path, kernels: Kernels, max_model_len: int = MAX_MODEL_LEN) -> Decoder:
    config = load_config(folder)
    return Decoder(config, load_weights(folder, config, WeightDtype.FP32), kernels, max_model_len)


def hf_logits(model: Any, token_ids: list[int]) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].float()


def mixed_logits(decoder: Decoder, first: list[int], second: list[int]) -> list[Tensor]:
    """Two sequences in shared steps of unlike chunks, then decode one token at a time."""
    run = PagedSequences(decoder, [first, second], seed=3)
    parts: list[list[Tensor]] = [[], []]
    for todo in ({0: 17}, {0: 1, 1: 30}, {1: 9, 0: 33}, {0: 9, 1: 1}):
        for i, logits in run.step(todo).items():
            parts[i].append(logits)
    while run.computed[0] < len(first) or run.computed[1] < len(second):
        todo = {i: 1 for i, ids in enumerate((first, second)) if run.computed[i] < len(ids)}
        for i, logits in run.step(todo).items():
            parts[i].append(logits)
    return [torch.cat(part) for part in parts]


def assert_equal_to_hf(folder: Path, model: Any, kernels: Kernels) -> None:
    sequences = [random_tokens(64, seed=1), random_tokens(43, seed=2)]
    decoder = load_decoder(folder, kernels)
    for ours, token_ids in zip(mixed_logits(decoder, *sequences), sequences, strict=True):
        theirs = hf_logits(model, token_ids)
        assert ours.shape == theirs.shape
        assert theirs.std() > 0.5
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0.0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_family_rope_and_shape(tmp_path: Path, family: str, rope: str, shape: str) -> None:
    model = make_model(tmp_path, family, rope_parameters=dict(ROPES[rope]), **SHAPES[shape])
    assert_equal_to_hf(tmp_path, model, make_kernels(KernelChoice.AUTO, threads=1))


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-derived-head-dim": ("llama", {"head_dim": None}),
    "mistral-window": ("mistral", {"sliding_window": 20}),
    "mistral-window-1": ("mistral", {"sliding_window": 1}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1}),
    "qwen2-switched-off": ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 0}),
    "qwen3-layer-types": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(tmp_path: Path, kernels: Kernels, variant: str) -> None:
    family, entries = VARIANTS[variant]
    assert_equal_to_hf(tmp_path, make_model(tmp_path, family, **entries), kernels)


def test_dynamic_rope_beyond_the_trained_context(tmp_path: Path, kernels: Kernels) -> None:
    """Equal to transformers for a sequence of exactly ``max_model_len`` tokens, which fixes our base."""
    entries = {"rope_parameters": dict(ROPES["dynamic"]), "max_position_embeddings": 40}
    model = make_model(tmp_path, "llama", **entries)
    token_ids = random_tokens(72, seed=4)
    # The short one first: transformers keeps the stretched base once it has seen a longer sequence.
    [short] = all_logits(load_decoder(tmp_path, kernels, max_model_len=40), [token_ids[:40]], chunk=25)
    torch.testing.assert_close(short, hf_logits(model, token_ids[:40]), atol=TOLERANCE, rtol=0.0)
    [ours] = all_logits(load_decoder(tmp_path, kernels, max_model_len=72), [token_ids], chunk=25)
    torch.testing.assert_close(ours, hf_logits(model, token_ids), atol=TOLERANCE, rtol=0.0)
    assert (short - ours[:40]).abs().max() > 0.01


@pytest.mark.parametrize("rope", [name for name in ROPES if name not in ("default", "dynamic")])
def test_the_comparison_notices_a_wrong_rope(tmp_path: Path, rope: str) -> None:
    make_model(tmp_path / "scaled", "llama", rope_parameters=dict(ROPES[rope]))
    plain = {"rope_type": "default", "rope_theta": ROPES[rope]["rope_theta"]}
    other = make_model(tmp_path / "plain", "llama", rope_parameters=plain)
    token_ids = random_tokens(64, seed=1)
    decoder = load_decoder(tmp_path / "scaled", make_kernels(KernelChoice.REFERENCE, threads=1))
    [ours] = all_logits(decoder, [token_ids], chunk=64)
    assert (ours - hf_logits(other, token_ids)).abs().max() > 0.05


def test_bf16_weights_stay_near(tmp_path: Path, kernels: Kernels) -> None:
    model = make_model(tmp_path, "qwen3")
    config = load_config(tmp_path)
    decoder = Decoder(config, load_weights(tmp_path, config, WeightDtype.BF16), kernels, MAX_MODEL_LEN)
    token_ids = random_tokens(40, seed=5)
    [ours] = all_logits(decoder, [token_ids], chunk=13)
    theirs = hf_logits(model, token_ids)
    error = (ours - theirs).norm() / theirs.norm()
    assert 1e-5 < error < 0.05


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_weights_in_several_files(tmp_path: Path, kernels: Kernels, family: str) -> None:
    model = make_model(tmp_path / "one", family)
    model.save_pretrained(tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    token_ids = [random_tokens(20, seed=6)]
    one = all_logits(load_decoder(tmp_path / "one", kernels), token_ids, chunk=20)
    many = all_logits(load_decoder(tmp_path / "many", kernels), token_ids, chunk=20)
    assert torch.equal(one[0], many[0])
