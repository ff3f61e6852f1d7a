"""Planted damage on a model whose retrieval head is known: each kind is flagged by the measure that is meant to see it.

| planted | meant to see it |
|---|---|
| every K and V off by 1 % | KL divergence |
| the retrieval head silent | repeat-copy gap |
| the last block's older V lost in decoding | KL divergence of decoded tokens; improbable tokens of free text |
| a window of 128 on all heads | passkey; repeat-copy gap beyond the window |
"""

import math

import pytest
from lab_models import IDLE_HEAD, RETRIEVAL_HEAD
from lab_setup import SIXTEEN_BITS, lab_plan, measured, small_lab

from kvasir.lab.fault import Fault, LostTail, NarrowWindow, NoisyKV, SilentHead
from kvasir.lab.figures import MeasureResult
from kvasir.lab.lab import Lab
from kvasir.lab.measures.copy_gap import CopyGap
from kvasir.lab.measures.degeneration import Degeneration
from kvasir.lab.measures.kl import KLDivergence
from kvasir.lab.measures.passkey import Passkey
from kvasir.lab.opening import open_lab
from kvasir.lab.reading import ReadingPlan
from kvasir.lab.setting import Setting

RETRIEVAL, IDLE = (SilentHead(layer=layer, kv_head=head) for layer, head in (RETRIEVAL_HEAD, IDLE_HEAD))
FAULTS: dict[str, Fault] = {
    "noise": NoisyKV(relative_error=0.01),
    "silent": RETRIEVAL,
    "idle": IDLE,
    "tail": LostTail(),
    "window": NarrowWindow(window=128),
}


@pytest.fixture(scope="module")
def lab(induction_model):
    settings = [Setting(name="sound", flags=SIXTEEN_BITS)]
    settings += [Setting(name=name, flags=SIXTEEN_BITS, fault=fault) for name, fault in FAULTS.items()]
    with open_lab(lab_plan(induction_model, settings, weight_dtype="int8")) as opened:
        yield opened


@pytest.fixture(scope="module")
def kl(lab) -> MeasureResult:
    plan = ReadingPlan(num_documents=6, num_tokens=200, num_long=0, num_long_tokens=0, num_decoded=40)
    return measured(lab, KLDivergence(plan=plan))


@pytest.fixture(scope="module")
def copy(lab) -> MeasureResult:
    return measured(lab, CopyGap(distances=(40, 400), num_seeds=3, block_tokens=48))


@pytest.fixture(scope="module")
def passkey(lab) -> MeasureResult:
    return measured(lab, Passkey(lengths=(110, 400), depths=(0.0, 0.5), num_keys=2))


@pytest.fixture(scope="module")
def free_text(lab) -> MeasureResult:
    return measured(lab, Degeneration(num_prompts=6, num_tokens=64))


def flags(lab: Lab, result: MeasureResult, setting: str) -> list[str]:
    """Metrics that lie beyond the floor and beyond the least change there is."""
    assert lab.nudged is not None
    return [metric.key for metric in result.flags(setting, (lab.floor.name, lab.nudged.name))]


def test_noise_of_one_percent_is_seen_by_kl(lab, kl):
    assert "mean" in flags(lab, kl, "noise")
    assert 0 < kl.settings["noise"].overall["mean"].value < 0.05


def test_a_silent_retrieval_head_is_seen_by_the_copy_gap(lab, copy):
    assert flags(lab, copy, "silent") == ["gap"]
    gap = copy.settings["silent"].tasks["random, 400 tokens apart"]["gap"].value
    assert gap == pytest.approx(math.log(lab.tokenizer.vocab_size), rel=0.01)


def test_an_idle_head_is_not_missed(lab, kl, copy, passkey, free_text):
    for result in (kl, copy, passkey, free_text):
        assert flags(lab, result, "idle") == []
        assert all(result.settings["idle"].overall[metric.key].value == 0 for metric in result.damage)


def test_a_lost_tail_is_seen_by_kl_in_decoded_tokens_only(lab, kl):
    assert "decoded" in flags(lab, kl, "tail")
    decoded = kl.settings["tail"].overall["decoded"]
    everything = kl.settings["tail"].overall["mean"]
    # Prefill saw nothing, so the mean over all tokens is the decoded tokens' share of it.
    assert everything.value * everything.num_samples == pytest.approx(decoded.value * decoded.num_samples, rel=1e-6)


def test_a_lost_tail_is_seen_in_free_text(lab, free_text):
    assert "improbable_rise" in flags(lab, free_text, "tail")


def test_a_narrow_window_is_seen_by_the_passkey(lab, passkey):
    assert "found_loss" in flags(lab, passkey, "window")
    found = {task: figures["found"].value for task, figures in passkey.settings["window"].tasks.items()}
    assert found == {"110 tokens": 1.0, "400 tokens": 0.0}


def test_a_narrow_window_is_seen_by_the_copy_gap_beyond_it(lab, copy):
    assert flags(lab, copy, "window") == ["gap"]
    tasks = copy.settings["window"].tasks
    assert tasks["random, 40 tokens apart"]["gap"].value == pytest.approx(0.0, abs=1e-3)
    assert tasks["random, 400 tokens apart"]["gap"].value > 5.0


def test_what_is_sound_is_flagged_by_nothing(lab, kl, copy, passkey, free_text):
    for result in (kl, copy, passkey, free_text):
        for setting in ("sound", lab.floor.name):
            assert flags(lab, result, setting) == []
            figures = result.settings[setting].overall
            assert all(figures[metric.key].value == 0 for metric in result.damage)


def test_the_least_change_is_a_control_and_no_damage(lab, kl, copy):
    """A part in a million of the attention scores: next to nothing here, and less than any damage."""
    for result in (kl, copy):
        assert flags(lab, result, lab.nudged.name) == []
    nudged, noisy = (kl.settings[name].overall["mean"] for name in (lab.nudged.name, "noise"))
    assert 0 <= nudged.highest < noisy.lowest


def test_the_model_is_said_to_have_induction_heads(copy):
    assert "has induction heads" in copy.notes[0]


def test_a_model_that_cannot_copy_is_said_to_prove_nothing(unigram_model):
    import torch
    from lab_models import vocab_size

    with small_lab(unigram_model("uniform", torch.zeros(vocab_size())), [Setting(name="same")]) as lab:
        result = measured(lab, CopyGap(distances=(50,), num_seeds=2, block_tokens=20))
    assert "copies too little" in result.notes[0]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_faulty_kernels_do_not_pass_for_sound_ones(lab, fault):
    """Cached blocks are keyed by the kernels' name, so damage must have one of its own."""
    names = {subject.engine.kernels_name for subject in lab.subjects}
    assert any(fault.label in name for name in names)


def test_a_head_that_does_not_exist_is_refused(induction_model):
    setting = Setting(name="none", fault=SilentHead(layer=7, kv_head=0))
    with pytest.raises(ValueError, match="no KV head 0 of layer 7"):
        small_lab(induction_model, [setting])
