"""Law 1 at the decoder: with int8 weights a token's logits are the same bits in any chunk, batch, block and thread."""

from pathlib import Path
from typing import Any

import pytest
import torch
from paged import all_logits
from tiny_models import make_model, random_tokens

from kvasir.core.errors import ConfigError
from kvasir.engine.config import KernelChoice, WeightDtype
from kvasir.kernels.interface import Kernels
from kvasir.kernels.select import make_kernels
from kvasir.models.config import load_config
from kvasir.models.decoder import Decoder
from kvasir.models.weights import load_weights

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral-window": ("mistral", {"sliding_window": 20}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1}),
    "qwen3-odd-width": ("qwen3", {"hidden_size": 72, "intermediate_size": 56}),
}


def compiled_kernels(threads: int) -> Kernels:
    try:
        return make_kernels(KernelChoice.CPU, threads)
    except ConfigError as error:
        pytest.skip(str(error))


def int8_decoder(folder: Path, max_model_len: int, threads: int) -> Decoder:
    config, kernels = load_config(folder), compiled_kernels(threads)
    weights = load_weights(folder, config, WeightDtype.INT8, kernels=kernels)
    return Decoder(config, weights, kernels, max_model_len)


@pytest.mark.parametrize("name", MODELS)
def test_tiny_models(tmp_path: Path, name: str) -> None:
    family, entries = MODELS[name]
    make_model(tmp_path, family, **entries)
    token_ids = random_tokens(75, seed=1)
    mates = [random_tokens(length, seed=length) for length in (3, 50, 75, 21, 64)]
    decoder = int8_decoder(tmp_path, 96, threads=1)
    [alone] = all_logits(decoder, [token_ids], chunk=75)
    assert alone.isfinite().all()
    for chunk in (1, 7, 16, 64):
        [logits] = all_logits(decoder, [token_ids], chunk, seed=chunk)
        assert torch.equal(logits, alone)
    assert torch.equal(all_logits(decoder, [token_ids], 20, block_size=32, seed=9)[0], alone)
    assert torch.equal(all_logits(decoder, [*mates, token_ids], 11, seed=5)[-1], alone)
    assert torch.equal(all_logits(int8_decoder(tmp_path, 96, threads=3), [token_ids], 32)[0], alone)


def test_the_embedded_model(demo_model: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    token_ids = torch.randint(0, 49152, (70,), generator=generator).tolist()
    mates = [torch.randint(0, 49152, (length,), generator=generator).tolist() for length in (5, 70, 33)]
    decoder = int8_decoder(demo_model, 128, threads=2)
    [alone] = all_logits(decoder, [token_ids], chunk=70)
    assert alone.isfinite().all()
    for chunk in (1, 7, 64):
        assert torch.equal(all_logits(decoder, [token_ids], chunk, seed=chunk)[0], alone)
    assert torch.equal(all_logits(decoder, [*mates, token_ids], 23, block_size=32, seed=5)[-1], alone)
    assert torch.equal(all_logits(int8_decoder(demo_model, 128, threads=1), [token_ids], 32)[0], alone)


def test_quantised_logits_stay_near_fp32(tmp_path: Path) -> None:
    make_model(tmp_path, "qwen2")
    config, kernels = load_config(tmp_path), compiled_kernels(1)
    token_ids = random_tokens(60, seed=8)
    logits = {
        dtype: all_logits(
            Decoder(config, load_weights(tmp_path, config, dtype, kernels=kernels), kernels, 96), [token_ids], 60
        )[0]
        for dtype in (WeightDtype.INT8, WeightDtype.FP32)
    }
    error = (logits[WeightDtype.INT8] - logits[WeightDtype.FP32]).norm() / logits[WeightDtype.FP32].norm()
    assert 1e-4 < error < 0.05
