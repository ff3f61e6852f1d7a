"""Divergence and perplexity where both can be worked out: models that say the same distribution everywhere."""

import math
from dataclasses import dataclass

import pytest
import torch
from lab_models import vocab_size
from lab_setup import SIXTEEN_BITS, measured, small_lab

from kvasir.core.errors import ConfigError
from kvasir.lab.measure import Size
from kvasir.lab.measures.kl import KLDivergence
from kvasir.lab.measures.perplexity import Perplexity
from kvasir.lab.reading import ReadingPlan
from kvasir.lab.setting import Setting
from kvasir.lab.texts import Passage

PLAN = ReadingPlan(num_documents=4, num_tokens=150, num_long=0, num_long_tokens=0, num_decoded=8)


@dataclass(frozen=True)
class Given:
    """Passages of which every token is ``token_id``, or one of a few in turn."""

    token_ids: tuple[int, ...]
    description: str = "given"

    def passages(self, num: int, num_tokens: int) -> list[Passage]:
        cycle = (self.token_ids * num_tokens)[:num_tokens]
        return [Passage(token_ids=(*cycle[i:], *cycle[:i]), start=1) for i in range(num)]

    def sentences(self, seed: int):
        raise AssertionError("not asked for")


@pytest.fixture(scope="module")
def skewed() -> torch.Tensor:
    logits = torch.zeros(vocab_size())
    logits[:100] = torch.linspace(0.0, 6.0, 100)
    return logits


def two_models(unigram_model, skewed):
    uniform = unigram_model("uniform", torch.zeros(vocab_size()))
    other = unigram_model("skewed", skewed)
    lab = small_lab(uniform, [Setting(name="other", flags={**SIXTEEN_BITS, "model": str(other)})])
    lab.texts = Given((5, 90))
    return lab


def test_the_kl_between_two_known_distributions(unigram_model, skewed):
    with two_models(unigram_model, skewed) as lab:
        result = measured(lab, KLDivergence(plan=PLAN))
    p = torch.full((vocab_size(),), 1.0 / vocab_size(), dtype=torch.float64)
    q = torch.softmax(skewed.double(), 0)
    expected = float((p * (p.log() - q.log())).sum())
    found = result.settings["other"].overall
    for key in ("mean", "decoded", "median", "p99", "max"):
        assert found[key].value == pytest.approx(expected, rel=1e-5), key
    changes = [(float(q[token]) - float(p[token])) ** 2 for token in (5, 90)]
    assert found["rms_dp"].value == pytest.approx(math.sqrt(sum(changes) / 2), rel=0.01)
    assert result.flags("other", [lab.floor.name])[0].key == "mean"


def test_the_floor_of_a_constant_model_is_nothing(unigram_model, skewed):
    with two_models(unigram_model, skewed) as lab:
        floor = measured(lab, KLDivergence(plan=PLAN)).settings[lab.floor.name].overall
    assert (floor["mean"].value, floor["max"].value, floor["top1"].value, floor["rms_dp"].value) == (0, 0, 1, 0)


def test_perplexity_of_a_uniform_model_is_its_vocabulary(unigram_model, skewed):
    with two_models(unigram_model, skewed) as lab:
        result = measured(lab, Perplexity(plan=PLAN))
    assert result.settings[lab.reference.name].overall["perplexity"].value == pytest.approx(vocab_size(), rel=1e-5)
    q = torch.log_softmax(skewed.double(), 0)
    expected = -float(q[5] + q[90]) / 2
    found = result.settings["other"].overall
    assert math.log(found["perplexity"].value) == pytest.approx(expected, rel=0.01)
    assert found["loss"].value == pytest.approx(expected - math.log(vocab_size()), abs=0.02)


def test_perplexity_can_be_fooled_and_kl_cannot(unigram_model, skewed):
    """The setting's distribution is far off, but it happens to favour the text's own tokens."""
    with two_models(unigram_model, skewed) as lab:
        lab.texts = Given((97, 98, 99))
        perplexity = measured(lab, Perplexity(plan=PLAN))
        divergence = measured(lab, KLDivergence(plan=PLAN))
    assert perplexity.settings["other"].overall["loss"].highest < 0
    assert perplexity.flags("other", [lab.floor.name]) == ()
    assert divergence.flags("other", [lab.floor.name])


def test_buckets_tell_where_in_the_context_it_hurts(unigram_model, skewed):
    with two_models(unigram_model, skewed) as lab:
        result = measured(lab, KLDivergence(plan=PLAN))
    assert list(result.settings["other"].tasks) == ["tokens 0 to 149"]  # 22 tokens are no bucket of their own
    assert sum(task["mean"].num_samples for task in result.settings["other"].tasks.values()) == 4 * 149


def test_both_measures_read_the_texts_once(unigram_model, skewed):
    with two_models(unigram_model, skewed) as lab:
        measured(lab, KLDivergence(plan=PLAN))
        reference = lab.reference
        before = reference.engine.stats().num_computed_tokens  # type: ignore[attr-defined]
        measured(lab, Perplexity(plan=PLAN))
        assert reference.engine.stats().num_computed_tokens == before  # type: ignore[attr-defined]


def test_another_vocabulary_cannot_be_compared(unigram_model, induction_model, tmp_path):
    import json
    import shutil

    from safetensors.torch import load_file, save_file

    uniform = unigram_model("uniform", torch.zeros(vocab_size()))
    other = tmp_path / "other"
    shutil.copytree(uniform, other)
    config = json.loads((other / "config.json").read_text()) | {"vocab_size": vocab_size() + 8}
    (other / "config.json").write_text(json.dumps(config))
    weights = load_file(other / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.cat([weights[name], torch.zeros(8, 64)])
    save_file(weights, other / "model.safetensors")
    with small_lab(uniform, [Setting(name="other", flags={"model": str(other)})]) as lab:
        lab.texts = Given((1, 2))
        with pytest.raises(ConfigError, match="vocabulary"):
            lab.run(KLDivergence(plan=PLAN))


def test_long_documents_are_scored_in_stretches_of_every_depth(unigram_model):
    plan = ReadingPlan.sized(Size.FULL, 4096)
    uniform = unigram_model("uniform", torch.zeros(vocab_size()))
    with small_lab(uniform, [Setting(name="same")], context=2048) as lab:
        lab.texts = Given((1, 2, 3))
        documents = plan.documents(lab)
    long = documents[-1]
    assert len(documents) == 20 and len(long.token_ids) == 4095
    assert [end for _, end in long.scored] == [256, 512, 1024, 2048, 4095]
    assert {end - start for start, end in long.scored} == {128}
