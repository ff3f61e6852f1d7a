"""Measures that ask, against planted answerers: scores, losses, maps and the worst task are what was planted."""

import pytest
from lab_planted import Planted, planted_lab, sees

from kvasir.lab.chat import Chat
from kvasir.lab.measures.multi_turn import MultiTurn
from kvasir.lab.measures.passkey import Passkey
from kvasir.lab.measures.ruler import TASKS, Ruler

PASSKEY = Passkey(lengths=(400, 2000), depths=(0.0, 0.5, 1.0), num_keys=2)


def test_passkeys_are_found_where_they_can_be_seen():
    """A reader of the last 200 words finds keys near the end only, and the map says so."""
    lab = planted_lab(all=sees(), end=sees(last=200))
    result = lab.run(PASSKEY)
    assert result.settings["all"].overall["found"].value == 1.0
    assert result.grids[0].cells["all"] == ((1.0, 1.0),) * 3
    # 400 tokens are about 230 words here: only a key at the very start of them is out of sight.
    assert result.grids[0].cells["end"] == ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))
    assert result.settings["end"].overall["found_loss"].value == pytest.approx(0.5)
    worst = result.settings["end"].worst(result.metrics[0])
    assert worst is not None and worst[0] == "2000 tokens"
    assert [metric.key for metric in result.flags("end", [lab.floor.name])] == ["found_loss"]
    assert result.flags(lab.floor.name, []) == ()


def test_only_what_runs_here_has_an_answer_loss():
    result = planted_lab(all=sees(), end=sees(last=50)).run(PASSKEY)
    assert "answer_loss" not in result.settings["end"].overall


def test_ruler_scores_the_share_of_answers():
    """One answerer sees everything, one says the first number only: all of one, a quarter of four, none of words."""
    lab = planted_lab(all=sees(), first=lambda chat: sees()(chat).split()[0], mute=lambda chat: "I do not know.")
    result = lab.run(Ruler(lengths=(500,), num_samples=2))
    assert list(result.settings["all"].tasks) == list(TASKS)
    found = {task: figures["found"].value for task, figures in result.settings["first"].tasks.items()}
    assert found["single needle, noise"] == found["single needle, book"] == 1.0
    assert found["multi-value"] == found["multi-query"] == 0.25
    assert found["common words"] == found["variable tracking"] == 0.0
    assert result.settings["mute"].overall["found"].value == 0.0
    assert result.settings["all"].tasks["multi-query"]["found"].value == 1.0


def test_a_long_talk_recalls_in_both_orders():
    lab = planted_lab(good=talker(), forgetful=talker(forgets_after=2))
    result = lab.run(MultiTurn(num_tokens=600, num_texts=3))
    assert result.settings["good"].overall["recalled"].value == 1.0
    assert result.settings["good"].overall["obeyed"].value == 1.0
    found = result.settings["forgetful"]
    assert found.overall["recalled"].value == pytest.approx(0.5)
    assert {task: figures["recalled"].value for task, figures in found.tasks.items()} == {
        "in turn": 0.5,
        "reversed": 0.5,
    }
    assert [metric.key for metric in result.flags("forgetful", [lab.floor.name])] == ["recalled_loss"]


def test_an_instruction_that_is_dropped_is_seen():
    lab = planted_lab(good=talker(), rude=talker(obeys=lambda turn: turn == 0))
    result = lab.run(MultiTurn(num_tokens=600, num_texts=2))
    assert result.settings["rude"].overall["obeyed"].value == pytest.approx(0.25)
    assert [metric.key for metric in result.flags("rude", [lab.floor.name])] == ["obeyed_loss"]


def test_a_talk_goes_on_from_the_subjects_own_replies():
    lab = planted_lab(good=talker(), forgetful=talker(forgets_after=2))
    lab.run(MultiTurn(num_tokens=300, num_texts=1))
    subject = lab.settings[0]
    assert isinstance(subject, Planted)
    last = subject.asked[-1]
    assert len(last.turns) == 7  # four questions, three replies between them
    assert last.turns[3].startswith("The number is ") and last.turns[5] == "The number is 0. Amen"


def talker(forgets_after: int | None = None, obeys=lambda turn: True):
    """Looks the asked fact up in the first turn; ``forgets_after`` so many turns it has only a wrong number left."""
    import re

    def answer(chat: Chat) -> str:
        turn = len(chat.turns) // 2
        thing = re.search(r"the number of ([\w ]+)\?$", chat.turns[-1])
        assert thing is not None
        value = re.search(rf"The number of {thing[1]} is (\d+)\.", chat.turns[0])
        assert value is not None
        known = forgets_after is None or turn < forgets_after
        return f"The number is {value[1] if known else '0'}. {'Amen' if obeys(turn) else ''}"

    return answer
