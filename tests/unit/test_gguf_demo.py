"""The embedded model, converted here, against transformers' own reading of the same GGUF file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from kvasir.core.progress import no_progress
from kvasir.models.demo import fetch_demo_gguf
from kvasir.text.tokenizer import Tokenizer

# Not among them: digits outside ASCII, which transformers' GGUF reader joins although the model's own rule
# (every digit alone) is named in the file.
TEXTS = [
    "Hello world, this is SmolLM.",
    "  two  spaces\n\n\ttab 12345 678.90",
    "naïve café 日本語 🙂👩‍👩‍👧 Größe Ёлка",
    "def f(x):\n    return x**2  # don't, I'LL, we've\r\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "\x00\x7f\u200b\ufeff",
    "",
]


@pytest.fixture(scope="module")
def gguf_file(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file itself, which the cache does not keep; ``demo_model`` has said that it can be had."""
    return fetch_demo_gguf(tmp_path_factory.mktemp("gguf"), no_progress)


def test_every_weight_is_the_one_transformers_reads(demo_model: Path, gguf_file: Path) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(demo_model))
    expected = load_gguf_checkpoint(gguf_file, return_tensors=True, model_to_load=model)["tensors"]
    ours = load_file(demo_model / "model.safetensors")
    assert ours.keys() == expected.keys()
    assert len(ours) == 272
    for name, tensor in ours.items():
        assert torch.equal(tensor, expected[name]), name


def test_the_tokenizer_gives_the_ids_transformers_gives(demo_model: Path, gguf_file: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    ours = Tokenizer.from_folder(demo_model)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), text
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}] * 2
    for prompt in (False, True):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert ours.apply_chat_template(messages, prompt) == expected
        assert ours.encode_chat(messages, prompt) == theirs(expected)["input_ids"]


def test_the_config_is_the_published_one(demo_model: Path) -> None:
    config = json.loads((demo_model / "config.json").read_text())
    published = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: config[key] for key in published} == published


def test_every_digit_is_a_token(demo_model: Path) -> None:
    tokenizer = Tokenizer.from_folder(demo_model)
    texts = [tokenizer.token_text(token_id) for token_id in tokenizer.encode("In 1984, 365")]
    assert [text for text in texts if text.strip().isdigit()] == list("1984365")
