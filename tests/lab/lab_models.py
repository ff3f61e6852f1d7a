"""Models whose weights are set by hand, saved as real checkpoints: what they answer can be worked out on paper."""

import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from kvasir.lab.prose import OPENINGS
from kvasir.lab.tasks.haystack import NOISE
from kvasir.lab.tasks.passkey import passkey

BOS, USER, ASSISTANT = "<|bos|>", "<|user|>", "<|assistant|>"
PASSKEY_LEAD = "The pass key is"
PASSKEY_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>" + PASSKEY_LEAD + "{% endif %}"
)
"""Ends in the lead: an induction model, which can only go on as it went on before, then names the key."""

HEAD_DIM = 256
CODE = 128
"""Channels of a token's code: the slow RoPE pairs of a head hold it at any distance."""
THETA = 1e12
FIRST_SLOW_PAIR = 60
RETRIEVAL_HEAD = (1, 0)
"""(layer, KV head) of the only head that copies."""
IDLE_HEAD = (1, 1)
MAX_LENGTH = 2048
NUM_RARE = 2000
"""Tokens of no text: the vocabulary's middle half is made of them, so random blocks share nothing with filler."""


@cache
def tokenizer_json() -> str:
    """Byte-level BPE that knows every word of the passkey task; digits stay single, and so does the lead."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [" ".join([*NOISE, *NOISE]), *OPENINGS, passkey(600, 0.5, 0, len).prompt]
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(corpus * 5, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (BOS, USER, ASSISTANT)])
    rare = [f"<rare {number}>" for number in range(NUM_RARE)]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (PASSKEY_LEAD, *rare)])
    return tokenizer.to_str()


def save_tokenizer(folder: Path) -> int:
    """Writes tokenizer files and returns the vocabulary's size."""
    tokenizer = Tokenizer.from_str(tokenizer_json())
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": BOS, "add_bos_token": True, "chat_template": PASSKEY_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


def codes(num: int, width: int = CODE) -> Tensor:
    """[num, width] unit vectors with small products among each other: random signs."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (num, width), generator=generator) * 2.0 - 1.0
    return signs / width**0.5


def make_induction_model(folder: Path) -> Path:
    """Two layers that do "as before, so again", and nothing else.

    Residual channels: [ code of this token | code of the one before | code to come | 1 | is BOS ].
    Layer 0, KV head 0 looks one position back (fast RoPE pairs peak at distance 1) and notes the code found there.
    Layer 1, KV head 0 looks for positions whose "one before" is this token (slow pairs: at any distance) and takes
    their token as the one to come; where there is none it looks at BOS, whose value is 0, so that all tokens are
    equally likely.  KV head 1 of both layers is idle.  What repeats is thus certain, a new token costs ln(vocabulary).
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = save_tokenizer(folder)
    bos = Tokenizer.from_str(tokenizer_json()).token_to_id(BOS)
    hidden = 3 * CODE + 64
    this, before, to_come, one, is_bos = 0, CODE, 2 * CODE, 3 * CODE, 3 * CODE + 1
    token_codes = codes(vocab_size)
    token_codes[bos] = 0.0
    embedding = torch.zeros(vocab_size, hidden)
    embedding[:, this : this + CODE] = token_codes
    embedding[:, one] = 1.0
    embedding[bos, is_bos] = 1.0

    half = HEAD_DIM // 2
    scale = HEAD_DIM**0.25  # in q and in k: takes back the division of scores by sqrt(head_dim)
    fast = torch.arange(12)
    angles = THETA ** (-2.0 * fast / HEAD_DIM)
    slow = [channel for pair in range(FIRST_SLOW_PAIR, half) for channel in (pair, pair + half)][: CODE + 1]
    weights: dict[str, Tensor] = {}
    for layer in range(2):
        q = torch.zeros(2 * HEAD_DIM, hidden)
        k = torch.zeros(2 * HEAD_DIM, hidden)
        v = torch.zeros(2 * HEAD_DIM, hidden)
        o = torch.zeros(hidden, 2 * HEAD_DIM)
        channels = torch.arange(CODE)
        if layer == 0:
            sharpness = 40.0
            q[fast, one] = sharpness**0.5 * scale
            # k turned by one position: the product with q is largest where the key is one position behind.
            k[fast, one] = sharpness**0.5 * scale * torch.cos(angles)
            k[fast + half, one] = sharpness**0.5 * scale * torch.sin(angles)
            o[before + channels, channels] = 1.0
        else:
            sharpness = 60.0
            q[slow[:CODE], this + channels] = sharpness**0.5 * scale
            k[slow[:CODE], before + channels] = sharpness**0.5 * scale
            q[slow[CODE], one] = (0.75 * sharpness) ** 0.5 * scale
            k[slow[CODE], is_bos] = (0.75 * sharpness) ** 0.5 * scale
            o[to_come + channels, channels] = 1.0
        v[channels, this + channels] = 1.0
        _add_layer(weights, layer, hidden, q, k, v, o)
        # Rows have the squared norm 2 before layer 0 and 3 after it: this makes RMSNorm leave them as they are.
        weights[f"model.layers.{layer}.input_layernorm.weight"] = torch.full((hidden,), ((2.0 + layer) / hidden) ** 0.5)
    head = torch.zeros(vocab_size, hidden)
    head[:, to_come : to_come + CODE] = 40.0 * token_codes
    weights |= {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.full((hidden,), (4.0 / hidden) ** 0.5),
        "lm_head.weight": head,
    }
    _save(folder, weights, hidden=hidden, vocab_size=vocab_size, bos=bos)
    return folder


def make_unigram_model(folder: Path, logits: Tensor) -> Path:
    """One layer that does nothing under a head that says ``logits`` [vocab_size] at every position."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = save_tokenizer(folder)
    hidden = 64
    embedding = torch.zeros(vocab_size, hidden)
    embedding[:, 0] = 1.0
    head = torch.zeros(vocab_size, hidden)
    head[:, 0] = logits
    nothing = torch.zeros(2 * HEAD_DIM, hidden)
    weights: dict[str, Tensor] = {}
    _add_layer(weights, 0, hidden, nothing, nothing, nothing, torch.zeros(hidden, 2 * HEAD_DIM))
    weights |= {
        "model.layers.0.input_layernorm.weight": torch.ones(hidden),
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.full((hidden,), hidden**-0.5),
        "lm_head.weight": head,
    }
    _save(folder, weights, hidden=hidden, vocab_size=vocab_size, bos=vocab_size - 4)
    return folder


def vocab_size() -> int:
    return Tokenizer.from_str(tokenizer_json()).get_vocab_size()


def _add_layer(weights: dict[str, Tensor], layer: int, hidden: int, q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> None:
    inner = 64
    parts = {
        "self_attn.q_proj.weight": q,
        "self_attn.k_proj.weight": k,
        "self_attn.v_proj.weight": v,
        "self_attn.o_proj.weight": o,
        "post_attention_layernorm.weight": torch.ones(hidden),
        "mlp.gate_proj.weight": torch.zeros(inner, hidden),
        "mlp.up_proj.weight": torch.zeros(inner, hidden),
        "mlp.down_proj.weight": torch.zeros(hidden, inner),
    }
    weights |= {f"model.layers.{layer}.{name}": tensor.clone() for name, tensor in parts.items()}


def _save(folder: Path, weights: dict[str, Tensor], *, hidden: int, vocab_size: int, bos: int) -> None:
    num_layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("model.layers."))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-12,
        "rope_theta": THETA,
        "tie_word_embeddings": False,
        "bos_token_id": bos,
        "eos_token_id": None,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
