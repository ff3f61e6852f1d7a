"""Measures by name, and a person's own measure in a file of its own."""

import pytest
from lab_planted import planted_lab, sees

from kvasir.core.errors import ConfigError
from kvasir.lab.gate import make_limits
from kvasir.lab.measure import Size
from kvasir.lab.opening import LabPlan
from kvasir.lab.registry import BUILT_IN, MeasureRegistry
from kvasir.lab.session import QualityPlan
from kvasir.lab.setting import Setting

PLUGIN = '''
"""How long answers are."""
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from kvasir.lab.chat import Chat
from kvasir.lab.estimate import mean_of
from kvasir.lab.figures import MeasureResult, Metric, SettingFigures

@dataclass(frozen=True)
class Length:
    name: ClassVar[str] = "length"
    title: ClassVar[str] = "Length of answers"
    needs_scores: ClassVar[bool] = False
    num_questions: int

    @classmethod
    def sized(cls, size, context):
        return cls(num_questions=3)

    def run(self, lab):
        replies = lab.ask([Chat(turns=(f"Say {i}",), max_tokens=4) for i in range(self.num_questions)])
        settings = {
            name: SettingFigures(overall={"words": mean_of([np.array([float(len(r.text.split()))]) for r in own])})
            for name, own in replies.items()
        }
        metrics = (Metric(key="words", label="words", is_headline=True),)
        return MeasureResult(name=self.name, title=self.title, metrics=metrics, settings=settings)
'''


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("size", Size)
@pytest.mark.parametrize("context", [512, 1024, 8192])
def test_every_measure_can_be_sized(name, size, context):
    measure = MeasureRegistry().find(name)
    assert measure.name == name and measure.title
    assert measure.sized(size, context) == measure.sized(size, context)


def test_an_unknown_measure_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="there are kl, perplexity, copy"):
        MeasureRegistry().find("speed")


def test_a_file_of_ones_own_is_a_measure(tmp_path):
    plugin = tmp_path / "length.py"
    plugin.write_text(PLUGIN)
    registry = MeasureRegistry((plugin,))
    assert registry.names[-1] == "length"
    lab = planted_lab(all=sees(), mute=lambda chat: "not a word")
    result = lab.run(registry.find("length").sized(Size.QUICK, 100))
    assert result.settings["mute"].overall["words"].value == 3.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [("x = 1", "defines no class"), (PLUGIN.replace('"length"', '"kl"'), "exists already"), (None, "no Python file")],
    ids=["nothing in it", "taken name", "no file"],
)
def test_files_that_add_no_measure_are_refused(tmp_path, content, reason):
    plugin = tmp_path / "plugin.py"
    if content is not None:
        plugin.write_text(content)
    with pytest.raises(ConfigError, match=reason):
        MeasureRegistry((plugin,))


def test_a_limit_without_its_measure_is_refused_at_once():
    with pytest.raises(ConfigError, match="--max-kl needs the measure 'kl'"):
        QualityPlan(lab=LabPlan(settings=(Setting(name="a"),)), measures=("copy",), limits=make_limits(max_kl=0.1))
