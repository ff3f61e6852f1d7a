"""Bans, bias and penalties against a plain reading of the definitions, one token at a time."""

import numpy as np
import pytest

from kvasir.core.sampling import SamplingParams
from kvasir.core.step import SequenceStart
from kvasir.engine.penalties import TokenCounts, edit_logits, make_edits

VOCAB = 50
PROMPT = (1, 2, 2, 3)
GENERATED = (3, 4, 4, 4)


def start(sequence_id: int = 0, **sampling) -> SequenceStart:
    return SequenceStart(
        sequence_id=sequence_id,
        token_ids=PROMPT + GENERATED,
        num_prompt_tokens=len(PROMPT),
        sampling=SamplingParams(**sampling),
        eos_token_ids=(7,),
    )


def expected(row: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    row = row.astype(np.float64)
    if len(GENERATED) < sampling.min_tokens:
        for token in (7, *sampling.stop_token_ids):
            row[token] = -np.inf
    for token, bias in sampling.logit_bias:
        row[token] += bias
    for token in range(VOCAB):
        if token in PROMPT + GENERATED:
            row[token] = (
                row[token] / sampling.repetition_penalty if row[token] > 0 else row[token] * sampling.repetition_penalty
            )
        count = GENERATED.count(token)
        row[token] -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
    return row


CASES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 0.9},
    {"frequency_penalty": -1.5},
    {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"logit_bias": ((3, 5.0), (49, -100.0))},
    {"logit_bias": ((4, -3.0),), "repetition_penalty": 2.0},
    {"min_tokens": 5, "stop_token_ids": (9, 4)},
    {"min_tokens": 4, "stop_token_ids": (9,)},
    {"min_tokens": 9, "logit_bias": ((7, 100.0),), "frequency_penalty": 1.0},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_sequence(case):
    begin = start(**case)
    edits = make_edits(begin)
    assert edits is not None
    logits = np.random.default_rng(0).normal(size=(3, VOCAB)).astype(np.float32) * 4
    before = logits.copy()
    edit_logits(logits, [1], [edits], [len(GENERATED)])
    assert (logits[[0, 2]] == before[[0, 2]]).all()
    assert np.allclose(logits[1], expected(before[1], begin.sampling), atol=1e-5)


def test_many_sequences_at_once_are_each_as_alone():
    logits = np.random.default_rng(1).normal(size=(len(CASES) + 1, VOCAB)).astype(np.float32) * 4
    before = logits.copy()
    starts = [start(i, **case) for i, case in enumerate(CASES)]
    edits = [make_edits(s) for s in starts]
    edit_logits(logits, list(range(1, len(CASES) + 1)), edits, [len(GENERATED)] * len(CASES))
    assert (logits[0] == before[0]).all()
    for i, begin in enumerate(starts):
        alone = before.copy()
        edit_logits(alone, [i + 1], [make_edits(begin)], [len(GENERATED)])
        assert (alone[i + 1] == logits[i + 1]).all()


def test_a_plain_sequence_needs_no_edits():
    assert make_edits(start(temperature=0.5, top_p=0.9, stop_token_ids=(3,))) is None


def test_counts_grow_as_tokens_come_and_match_a_fresh_count():
    rng = np.random.default_rng(2)
    prompt, generated = rng.integers(0, 500, 300).tolist(), rng.integers(0, 500, 400).tolist()
    counts = TokenCounts(prompt, generated[:100])
    for token in generated[100:]:
        counts.add(token)
    assert set(counts.ids.tolist()) == set(prompt) | set(generated)
    assert len(counts.ids) == len(set(counts.ids.tolist()))
    for token, count in zip(counts.ids.tolist(), counts.num_generated.tolist(), strict=True):
        assert count == generated.count(token)


def test_a_bias_given_twice_adds_up():
    edits = make_edits(start(logit_bias=((5, 1.0), (5, 2.0))))
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    edit_logits(logits, [0], [edits], [0])
    assert logits[0, 5] == 3.0
