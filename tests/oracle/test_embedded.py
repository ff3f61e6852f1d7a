"""Oracle: the embedded model in fp32 gives transformers' logits and transformers' greedy text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from paged import PagedSequences, all_logits

from kvasir.engine.config import KernelChoice, WeightDtype
from kvasir.kernels.select import make_kernels
from kvasir.models.config import load_config
from kvasir.models.decoder import Decoder
from kvasir.models.linear import MAX_ROTATION
from kvasir.models.weights import load_weights

RELATIVE_TOLERANCE = 1e-4
MAX_MODEL_LEN = 768
NUM_GREEDY = 256
LONG_TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()


@pytest.fixture(scope="module")
def decoder(demo_model: Path) -> Decoder:
    config = load_config(demo_model)
    kernels = make_kernels(KernelChoice.AUTO, threads=2)
    return Decoder(config, load_weights(demo_model, config, WeightDtype.FP32), kernels, MAX_MODEL_LEN)


@pytest.fixture(scope="module")
def hf_model(demo_model: Path) -> Iterator[Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32)
    yield model.eval()


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(demo_model)


@pytest.mark.parametrize("text", ["The capital of France is", "def fibonacci(n):\n    if n < 2:", LONG_TEXT])
def test_logits(decoder: Decoder, hf_model: Any, tokenizer: Any, text: str) -> None:
    token_ids = tokenizer(text)["input_ids"][:600]
    with torch.inference_mode():
        theirs = hf_model(torch.tensor([token_ids])).logits[0]
    [ours] = all_logits(decoder, [token_ids], chunk=200)
    assert len(token_ids) == 600 or text is not LONG_TEXT
    assert (ours - theirs).abs().max() <= RELATIVE_TOLERANCE * theirs.abs().max()


def test_int8_weights_stay_close(demo_model: Path, decoder: Decoder, tokenizer: Any) -> None:
    """A guard on 300 tokens; ``bench/weight_kl.py`` is the measurement (0.005 rotated, 0.04 plain, on other text)."""
    token_ids = tokenizer(LONG_TEXT)["input_ids"][:300]
    [exact] = all_logits(decoder, [token_ids], chunk=300)
    divergences = {}
    for max_rotation in (0, MAX_ROTATION):
        weights = load_weights(demo_model, decoder.config, WeightDtype.INT8, max_rotation=max_rotation)
        int8 = Decoder(decoder.config, weights, decoder.kernels, MAX_MODEL_LEN)
        [logits] = all_logits(int8, [token_ids], chunk=300)
        kl = torch.nn.functional.kl_div(
            logits.log_softmax(-1), exact.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        divergences[max_rotation] = kl.item()
    assert divergences[MAX_ROTATION] < 0.01
    assert divergences[MAX_ROTATION] < divergences[0] / 3


def test_greedy_text(decoder: Decoder, hf_model: Any, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "Tell me a long story about a lighthouse keeper and a raven."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    input_ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = hf_model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),  # else the prompt's end-of-turn tokens count as padding
            do_sample=False,
            max_new_tokens=NUM_GREEDY,
            min_new_tokens=NUM_GREEDY,
            eos_token_id=None,
        )
    theirs = output[0, len(prompt) :].tolist()
    run = PagedSequences(decoder, [list(prompt)])
    logits = run.step({0: len(prompt)})[0]
    for _ in range(NUM_GREEDY):
        run.token_ids[0].append(int(logits[-1].argmax()))
        logits = run.step({0: 1})[0]
    ours = run.token_ids[0][len(prompt) : len(prompt) + NUM_GREEDY]
    assert len(set(theirs)) > 60
    assert ours == theirs
