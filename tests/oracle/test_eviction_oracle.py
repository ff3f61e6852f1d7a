"""Eviction against a dense oracle: transformers' own model, whose cache is cut per head where the prompt ends."""

from pathlib import Path

import pytest
import torch
import transformers
from tiny_models import make_model

from kvasir.core.events import TokensEvent
from kvasir.core.progress import no_progress
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.engine.assembly import build, load_model
from kvasir.engine.engine import Engine
from kvasir.engine.flags import make_engine_config
from kvasir.engine.memory import available_memory
from kvasir.models.config import load_config
from kvasir.models.resolve import resolve_model
from kvasir.models.weight_dtype import WeightDtype

NUM_OUTPUT = 24
NUM_ALTERNATIVES = 5
CASES = [  # (prompt tokens, share kept, sinks, recent)
    (17, 0.5, 0, 0),
    (33, 0.3, 2, 4),
    (64, 0.75, 4, 8),
    (79, 0.2, 0, 3),
    (80, 0.99, 1, 1),
]


def keydiff_kept(keys: torch.Tensor, keep: float, sinks: int, recent: int) -> torch.Tensor:
    """Positions [h, n] kept of ``keys`` [h, P, D], from the definition."""
    num = keys.shape[1]
    anchor = torch.nn.functional.normalize(keys.double(), dim=2).mean(dim=1, keepdim=True)
    likeness = torch.nn.functional.cosine_similarity(keys.double(), anchor, dim=2)
    likeness[:, :sinks] = likeness[:, num - recent :] = -2.0
    count = max(sinks + recent, -(-round(keep * num * 1000) // 1000))
    return likeness.argsort(dim=1)[:, :count].sort(dim=1).values


def oracle(model, prompt: list[int], tokens: list[int], case: tuple[int, float, int, int]) -> torch.Tensor:
    """Log-probabilities [len(tokens), vocabulary] with every head's own kept keys from the prompt's end on."""
    cache = transformers.DynamicCache()
    rows = [model(torch.tensor([prompt]), past_key_values=cache).logits[0, -1]]
    for layer in cache.layers:
        kept = keydiff_kept(layer.keys[0], *case[1:])
        heads = torch.arange(len(kept))[:, None]
        layer.keys, layer.values = layer.keys[0][heads, kept][None], layer.values[0][heads, kept][None]
    for i, token in enumerate(tokens[:-1]):
        position = torch.tensor([[len(prompt) + i]])
        sees_all = torch.zeros(1, 1, 1, cache.layers[0].keys.shape[2] + 1)
        rows.append(
            model(
                torch.tensor([[token]]), past_key_values=cache, position_ids=position, attention_mask=sees_all
            ).logits[0, -1]
        )
    return torch.log_softmax(torch.stack(rows).double(), dim=-1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_model(path, "llama")
    return path


@torch.no_grad()
@pytest.mark.parametrize("case", CASES, ids=str)
def test_logprobs_are_those_of_a_dense_cache_cut_per_head(folder, case):
    num_prompt, keep, sinks, recent = case
    generator = torch.Generator().manual_seed(num_prompt)
    prompt = torch.randint(3, 101, (num_prompt,), generator=generator).tolist()
    config = make_engine_config(
        model=str(folder),
        weight_dtype="fp32",
        kv_cache_dtype="fp32",
        kv_cache_memory="2MiB",
        max_num_batched_tokens=29,
        max_num_seqs=4,
        kv_eviction=f"keydiff:keep={keep},sinks={sinks},recent={recent}",
    )
    found = resolve_model(str(folder))
    engine = Engine(build(load_model(found, load_config(found.path), WeightDtype.FP32, no_progress), config,
                          available_memory()))  # fmt: skip
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT, ignore_eos=True, logprobs=NUM_ALTERNATIVES)
    engine.add_request(Request(request_id="r", prompt_token_ids=tuple(prompt), sampling=sampling))
    events = [event for _ in range(200) if engine.has_work for event in engine.step() if isinstance(event, TokensEvent)]
    tokens = [token for event in events for token in event.token_ids]
    logprobs = [entry for event in events for entry in event.logprobs]
    assert len(tokens) == NUM_OUTPUT
    assert engine.stats().num_evicted_tokens == num_prompt - max(
        sinks + recent, -(-round(keep * num_prompt * 1000) // 1000)
    )

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = oracle(model, prompt, tokens, case)
    for row, entry in zip(expected, logprobs, strict=True):
        for token, logprob in entry.top:
            assert logprob == pytest.approx(row[token].item(), abs=2e-4)
    whole = oracle(model, prompt, tokens, (num_prompt, 1.0, 0, 0))
    if keep < 0.9:
        assert (whole[1:] - expected[1:]).abs().max() > 0.01, "the eviction is seen"
