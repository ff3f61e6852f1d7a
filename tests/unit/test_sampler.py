"""The sampler as the runner uses it: many sequences, each with its own settings, none disturbed by the others."""

import numpy as np
import pytest
import torch

from kvasir.core.errors import InvariantViolation
from kvasir.core.sampling import SamplingParams
from kvasir.core.step import SequenceStart
from kvasir.engine.sampler import Sampler

VOCAB = 2048


def begin(sequence_id: int, *, tokens: tuple[int, ...] = (1, 2, 3), num_prompt: int = 3, index: int = 0, **sampling):
    return SequenceStart(
        sequence_id=sequence_id,
        token_ids=tokens,
        num_prompt_tokens=num_prompt,
        sampling=SamplingParams(**sampling),
        eos_token_ids=(0,),
        index=index,
    )


def logits_of(*seeds: int, vocab_size: int = VOCAB) -> torch.Tensor:
    """A row that is a function of its own seed."""
    rows = [np.random.default_rng(seed).normal(size=vocab_size).astype(np.float32) * 3 for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def ids(sampled) -> list[int]:
    return [token.token_id for token in sampled.tokens]


MIX = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 42},
    {"temperature": 1.0, "seed": 7, "top_p": 0.9},
    {"temperature": 0.7, "seed": 7, "top_k": 20, "repetition_penalty": 1.2},
    {"temperature": 1.3, "seed": 3, "min_p": 0.02, "frequency_penalty": 0.8},
    {"temperature": 0.0, "presence_penalty": 1.5, "logprobs": 3},
    {"temperature": 0.9, "seed": -5, "logit_bias": ((3, 4.0),), "logprobs": 0},
    {"temperature": 0.9, "seed": 5, "min_tokens": 4, "stop_token_ids": (9,)},
]


def run_alone(sampling: dict, sequence_id: int, num_steps: int) -> list:
    sampler = Sampler(max_num_seqs=1)
    sampler.start(begin(sequence_id, **sampling))
    return [sampler.sample([sequence_id], logits_of(100 * sequence_id + step)).tokens[0] for step in range(num_steps)]


def test_every_sequence_gets_what_it_gets_alone_whatever_the_batch():
    num_steps = 6
    expected = {i: run_alone(sampling, i, num_steps) for i, sampling in enumerate(MIX)}
    sampler = Sampler(max_num_seqs=64)
    for i in range(30, 60):  # neighbours without a seed
        sampler.start(begin(i, temperature=1.0))
    for i, sampling in enumerate(MIX):
        sampler.start(begin(i, **sampling))
    rng = np.random.default_rng(0)
    for step in range(num_steps):
        order = [int(i) for i in rng.permutation([*range(len(MIX)), *rng.choice(range(30, 60), 20, replace=False)])]
        sampled = sampler.sample(order, logits_of(*[100 * i + step for i in order]))
        for token in sampled.tokens:
            if token.sequence_id < len(MIX):
                assert token == expected[token.sequence_id][step]


def test_a_preempted_sequence_goes_on_with_the_same_draws():
    for sampling in MIX:
        expected = run_alone(sampling, 2, 8)
        sampler = Sampler(max_num_seqs=2)
        sampler.start(begin(2, **sampling))
        got = [sampler.sample([2], logits_of(200 + step)).tokens[0] for step in range(3)]
        sampler.end(2)
        sampler.start(begin(9, temperature=1.0))  # takes the slot that was left
        sampler.start(begin(2, tokens=(1, 2, 3, *[t.token_id for t in got]), **sampling))
        got += [sampler.sample([2], logits_of(200 + step)).tokens[0] for step in range(3, 8)]
        assert got == expected


def test_siblings_and_seeds_draw_different_streams():
    sampler = Sampler(max_num_seqs=16)
    streams = {}
    for index in range(4):
        sampler.start(begin(index, index=index, temperature=1.0, seed=1))
    for sequence_id, seed in ((4, 2), (5, None), (6, None)):
        sampler.start(begin(sequence_id, temperature=1.0, seed=seed))
    for step in range(20):
        for token in sampler.sample(range(7), logits_of(*[step] * 7)).tokens:
            streams.setdefault(token.sequence_id, []).append(token.token_id)
    assert len({tuple(stream) for stream in streams.values()}) == 7


def test_unseeded_requests_are_reproducible_with_the_engines_seed():
    def stream(seed: int) -> list[int]:
        sampler = Sampler(max_num_seqs=1, seed=seed)
        sampler.start(begin(3, temperature=1.0))
        return [ids(sampler.sample([3], logits_of(step)))[0] for step in range(10)]

    assert stream(5) == stream(5)
    assert stream(5) != stream(6)


def test_greedy_takes_the_lowest_id_of_equal_logits():
    sampler = Sampler(max_num_seqs=2)
    sampler.start(begin(0, temperature=0.0))
    sampler.start(begin(1, temperature=0.0, logprobs=2))
    logits = torch.zeros(2, VOCAB)
    logits[:, [700, 300]] = 4.0
    sampled = sampler.sample([0, 1], logits)
    assert ids(sampled) == [300, 300]
    assert [token for token, _ in sampled.tokens[1].logprobs.top] == [300, 700]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bad_row_fails_alone(bad, temperature):
    sampler = Sampler(max_num_seqs=3)
    reference = Sampler(max_num_seqs=3)
    for i in range(3):
        for one in (sampler, reference):
            one.start(begin(i, temperature=temperature, seed=i, logprobs=1))
    logits = logits_of(1, 2, 3)
    good = reference.sample([0, 1, 2], logits.clone()).tokens
    logits[1, 77] = bad
    sampled = sampler.sample([0, 1, 2], logits)
    assert sampled.tokens == (good[0], good[2])
    assert list(sampled.failed) == [1]
    assert "not finite" in sampled.failed[1]


def test_a_row_where_everything_is_banned_fails_alone():
    sampler = Sampler(max_num_seqs=2)
    sampler.start(begin(0, temperature=1.0, min_tokens=5, stop_token_ids=(0, 1, 2, 3)))
    sampler.start(begin(1, temperature=1.0))
    sampled = sampler.sample([0, 1], torch.zeros(2, 4))
    assert [t.sequence_id for t in sampled.tokens] == [1]
    assert "rule out" in sampled.failed[0]


def test_min_tokens_keeps_the_end_away_until_reached():
    sampler = Sampler(max_num_seqs=1)
    sampler.start(begin(0, temperature=0.0, min_tokens=3, stop_token_ids=(5,)))
    logits = torch.zeros(1, 16)
    logits[0, 0], logits[0, 5], logits[0, 9] = 9.0, 8.0, 1.0
    assert [ids(sampler.sample([0], logits.clone()))[0] for _ in range(5)] == [9, 9, 9, 0, 0]


def test_logprobs_are_those_of_the_edited_distribution_before_temperature():
    sampler = Sampler(max_num_seqs=3)
    sampler.start(begin(0, temperature=0.5, seed=1, top_k=3, logprobs=4, logit_bias=((10, 3.0),)))
    sampler.start(begin(1, temperature=0.0, logprobs=0))
    sampler.start(begin(2, temperature=0.0))
    logits = logits_of(1, 2, 3)
    biased = logits[0].double().clone()
    biased[10] += 3.0
    exact = [torch.log_softmax(biased, -1), torch.log_softmax(logits[1].double(), -1)]
    sampled = sampler.sample([0, 1, 2], logits.clone()).tokens
    assert sampled[2].logprobs is None
    for row in (0, 1):
        entry = sampled[row].logprobs
        assert entry.logprob == pytest.approx(float(exact[row][sampled[row].token_id]), abs=1e-5)
        assert entry.rank == 1 + int((exact[row] > exact[row][sampled[row].token_id]).sum())
    best = torch.topk(exact[0], 4)
    assert [token for token, _ in sampled[0].logprobs.top] == best.indices.tolist()
    assert [value for _, value in sampled[0].logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert sampled[1].logprobs.top == ()


def test_each_token_carries_its_own_alternatives():
    sampler = Sampler(max_num_seqs=8)
    for i in range(8):
        sampler.start(begin(i, temperature=0.0, logprobs=2))
    rows = logits_of(*range(8))
    for token, row in zip(sampler.sample(range(8), rows.clone()).tokens, rows, strict=True):
        assert [i for i, _ in token.logprobs.top] == torch.topk(row, 2).indices.tolist()
        assert token.logprobs.top[0] == (token.token_id, token.logprobs.logprob)


def test_misuse_is_a_broken_invariant():
    sampler = Sampler(max_num_seqs=1)
    sampler.start(begin(0))
    with pytest.raises(InvariantViolation):
        sampler.start(begin(0))
    with pytest.raises(InvariantViolation):
        sampler.start(begin(1))
    sampler.end(0)
    with pytest.raises(InvariantViolation):
        sampler.end(0)
