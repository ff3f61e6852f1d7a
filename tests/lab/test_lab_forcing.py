"""Teacher forcing through the real scheduler and block manager: every scored token once, whatever the plan was."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from lab_setup import SIXTEEN_BITS, small_lab

from kvasir.lab.comparison import NotFiniteError, compare
from kvasir.lab.document import Document, whole
from kvasir.lab.fault import NoisyKV
from kvasir.lab.lab import Lab
from kvasir.lab.setting import Setting
from kvasir.lab.subject import LocalSubject


def no_progress(stage: str, fraction: float) -> None:
    """Says nothing."""


def documents(lab: Lab, num: int = 3, length: int = 180, num_decoded: int = 9) -> list[Document]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(700, lab.tokenizer.vocab_size - 10, (num, length), generator=generator)
    return [whole(tuple(row.tolist()), num_decoded=num_decoded) for row in ids]


def setting_lab(model, **flags: str) -> Lab:
    return small_lab(model, [Setting(name="setting", flags={**SIXTEEN_BITS, **flags})], weight_dtype="int8")


SCHEDULES = {
    "chunks of 7 tokens": {"max_num_batched_tokens": "7", "max_num_seqs": "3"},
    "one at a time": {"max_num_seqs": "1"},
    "larger blocks": {"block_size": "64"},
    "no prefix caching": {"enable_prefix_caching": "off"},
    "static batches": {"scheduling": "static"},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_scores_do_not_depend_on_the_schedule(induction_model, name):
    with setting_lab(induction_model, **SCHEDULES[name]) as lab:
        scores = lab.compare(documents(lab)).by_subject
    for ours, theirs in zip(scores["setting"], scores["16-bit"], strict=True):
        assert np.array_equal(ours.nll, theirs.nll)
        assert not ours.kl.any() and ours.is_same_best.all()


def test_scores_survive_preemption(induction_model):
    """Room for one document and a half: the later one is preempted, computed again, and still seen once."""
    with setting_lab(induction_model, kv_cache_memory=str(20 * 16 * 4096), max_model_len="256") as lab:
        scores = lab.compare(documents(lab, num=2, length=200, num_decoded=120)).by_subject
        subject = lab.settings[0]
        assert isinstance(subject, LocalSubject)
        assert subject.engine.stats().num_preemptions > 0
    for ours, theirs in zip(scores["setting"], scores["16-bit"], strict=True):
        assert np.array_equal(ours.nll, theirs.nll)


def test_the_floor_is_exactly_nothing_on_the_exact_path(induction_model):
    """Integer weights: the reference again, in other chunks, batches and another order, is the same to the bit."""
    with setting_lab(induction_model) as lab:
        scores = lab.compare(documents(lab, num=5)).by_subject["16-bit again"]
        floor = lab.floor
        assert isinstance(floor, LocalSubject)
        assert floor.engine.config.scheduler.max_num_batched_tokens != 512
        assert floor.engine.stats().num_computed_tokens > 5 * 180  # companions ran beside the documents
    assert all(not document.kl.any() for document in scores)


def test_only_what_is_asked_for_is_scored(induction_model):
    with setting_lab(induction_model) as lab:
        (everything,) = documents(lab, num=1)
        some = replace(everything, scored=((20, 30), (100, 101), (150, 180)))
        full, part = (lab.compare([document]).by_subject["16-bit"][0] for document in (everything, some))
    assert part.indices.tolist() == [*range(20, 30), 100, *range(150, 180)]
    assert np.array_equal(part.nll, full.nll[part.indices - 1])
    assert part.is_decoded.sum() == 8  # of nine decoded tokens, the first was predicted by the prompt's end


def test_known_costs(induction_model):
    """A new token costs ln(vocabulary), a repeated one nothing: that is what the weights were set for."""
    with small_lab(induction_model, [Setting(name="same", flags=SIXTEEN_BITS)]) as lab:
        tokenizer = lab.tokenizer
        block = tuple(range(800, 860))
        assert tokenizer.bos_id is not None
        document = whole((tokenizer.bos_id, *block, *block), num_decoded=30)
        (scores,) = lab.compare([document]).by_subject["16-bit"]
    new, repeated = scores.nll[:60], scores.nll[61:]
    assert new == pytest.approx(math.log(tokenizer.vocab_size), abs=1e-3)
    assert repeated == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_setting_that_computes_no_numbers_is_named(induction_model, value):
    """One element of one value vector is enough."""

    class Broken(NoisyKV):
        def wrap(self, kernels, store):
            sound = kernels.attend

            def attend(q, kv, plan, scale, out):
                sound(q, kv, plan, scale, out)
                out[-1, 0, 0] = value

            kernels.attend = attend
            return kernels

    settings = [Setting(name="broken", flags=SIXTEEN_BITS, fault=Broken())]
    with small_lab(induction_model, settings) as lab, pytest.raises(NotFiniteError, match="'broken' computes logits"):
        lab.compare(documents(lab, num=1, length=30))


def test_waves_hold_no_more_logits_than_they_may(induction_model, monkeypatch):
    monkeypatch.setattr("kvasir.lab.comparison._WAVE_BYTES", 1)
    with setting_lab(induction_model) as lab:
        texts = documents(lab, num=3, length=40)
        reference = lab.reference
        assert isinstance(reference, LocalSubject)
        alone = compare(reference, (), texts, no_progress).by_subject["16-bit"]
        monkeypatch.undo()
        together = compare(reference, (), texts, no_progress).by_subject["16-bit"]
    for ours, theirs in zip(alone, together, strict=True):
        assert np.array_equal(ours.nll, theirs.nll)


@pytest.mark.parametrize("scored", [((0, 5),), ((3, 3),), ((5, 9), (8, 10)), ((5, 99),)])
def test_ranges_that_cannot_be_scored_are_refused(scored):
    with pytest.raises(ValueError, match="cannot be scored"):
        Document(token_ids=tuple(range(10)), scored=scored)
