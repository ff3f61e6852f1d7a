"""The lab on the embedded model: a floor of nothing, a cache format's difference, a key that is found."""

import pytest
from lab_setup import SIXTEEN_BITS

from kvasir.lab.measures.kl import KLDivergence
from kvasir.lab.measures.passkey import Passkey
from kvasir.lab.opening import LabPlan, open_lab
from kvasir.lab.prose import sentences
from kvasir.lab.reading import ReadingPlan
from kvasir.lab.setting import Setting
from kvasir.lab.texts import FileTexts

READING = ReadingPlan(num_documents=2, num_tokens=90, num_long=0, num_long_tokens=0, num_decoded=6)


@pytest.fixture(scope="module")
def lab(demo_model, tmp_path_factory):
    made = sentences(0)
    file = tmp_path_factory.mktemp("texts") / "prose.txt"
    file.write_text(" ".join(next(made) for _ in range(60)))
    settings = (Setting(name="wide", flags={"kv_cache_dtype": "fp32"}), Setting(name="same", flags=SIXTEEN_BITS))
    plan = LabPlan(settings=settings, shared={"model": "demo", "threads": "1", "max_model_len": "512"}, texts=(file,))
    with open_lab(plan) as opened:
        assert isinstance(opened.texts, FileTexts)
        yield opened


def test_sixteen_bits_twice_is_exactly_nothing_and_fp32_is_something(lab):
    result = lab.run(KLDivergence(plan=READING))
    for name in (lab.floor.name, "same"):
        figures = result.settings[name].overall
        assert (figures["mean"].value, figures["max"].value, figures["top1"].value) == (0.0, 0.0, 1.0), name
    wide = result.settings["wide"].overall
    assert 0.0 < wide["mean"].value < 0.02 and wide["top1"].value > 0.9


def test_weights_are_shared_and_bytes_are_not(lab):
    reference, wide = lab.reference, lab.settings[0]
    assert reference.engine.weights_bytes == wide.engine.weights_bytes
    assert wide.facts().bytes_per_token == 2 * reference.facts().bytes_per_token == 2 * 23040
    assert wide.facts().model_digest == reference.facts().model_digest
    assert wide.facts().layout_digest != reference.facts().layout_digest == lab.settings[1].facts().layout_digest


def test_a_key_is_found_through_the_chat_template(lab):
    result = lab.run(Passkey(lengths=(150,), depths=(0.5,), num_keys=1))
    for name in (lab.reference.name, lab.floor.name, "wide"):
        assert result.settings[name].overall["found"].value == 1.0, name
    assert result.settings["same"].overall["answer_loss"].value == 0.0
