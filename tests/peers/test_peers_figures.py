"""Ratios are taken within turns and against the best peer; the workloads ask what they say."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest

from kvasir.claims.result_file import Better
from side_by_side import records
from side_by_side.contenders import default_kv_bits
from side_by_side.figures import agreement, ratio_to_best
from side_by_side.records import Failure, Record
from side_by_side.wire import Answer
from side_by_side.workloads import WORKLOADS, mixed_jobs, prompt_of


def record(contender: str, turn: str, value: float, tokens: tuple[int, ...] = ()) -> Record:
    return Record(
        workload="W1",
        contender=contender,
        turn=turn,
        seed=0,
        figures={"tpot_s": value, "all_s": [value]},
        tokens=[list(tokens)],
        peak_bytes=1,
        other_cores=0.0,
        start_to_first_token_s=1.0,
        about={},
        commit="c",
        date="d",
    )


def ratio(entries: list[Record], better: Better = Better.LOWER):
    peers = ["slow", "fast"]
    return ratio_to_best(entries, workload="W1", figure="tpot_s", ours="us", peers=peers, better=better)


def test_ratio_is_the_median_over_shared_turns_with_the_best_peer() -> None:
    turns = {"us": (1.0, 4.0, 9.0, 5.0), "fast": (2.0, 4.0, 3.0), "slow": (8.0, 8.0, 8.0)}
    entries = [record(name, str(i), value) for name, values in turns.items() for i, value in enumerate(values)]
    found = ratio(entries)
    assert found is not None
    assert (found.best_peer, found.per_turn, found.value) == ("fast", [0.5, 1.0, 3.0], 1.0)
    most = ratio(entries, Better.HIGHER)
    assert most is not None and most.best_peer == "slow"


def test_no_ratio_without_a_shared_turn() -> None:
    assert ratio([record("us", "0", 1.0)]) is None
    assert ratio([record("fast", "0", 1.0)]) is None
    assert ratio([record("us", "0", 1.0), record("fast", "1", 1.0)]) is None


def test_agreement_ends_at_the_first_difference() -> None:
    ours = [record("us", "0", 1.0, (1, 2, 9, 4)), record("us", "1", 1.0, (5, 6)), record("us", "9", 1.0, (0,))]
    reference = [record("ref", "0", 1.0, (1, 2, 3, 4)), record("ref", "1", 1.0, (5, 6))]
    assert agreement(ours, reference) == pytest.approx(4 / 6)
    assert agreement(ours, []) is None


def test_records_are_read_as_they_were_noted(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.jsonl"
    assert records.read(path) == ([], [])
    noted, failed = record("us", "0", 1.5), Failure(workload="W1", contender="x", turn="0", error="why")
    records.append(path, noted)
    records.append(path, failed)
    assert records.read(path) == ([noted], [failed])


def play(name: str) -> tuple[dict[str, float | list[float]], list[tuple[list[int], int]]]:
    """A workload against a program that takes a millisecond a token and always says 3."""
    asked: list[tuple[list[int], int]] = []

    async def ask(prompt: list[int], num_output: int) -> Answer:
        asked.append((prompt, num_output))
        sent_s = time.monotonic()
        await asyncio.sleep(0.001)
        times_s = [sent_s + 0.001 * (i + 1) for i in range(num_output)]
        return Answer(number=0, sent_s=sent_s, times_s=times_s, token_ids=[3] * num_output)

    return asyncio.run(WORKLOADS[name].play(ask, 1000)).figures, asked


def test_prompts_have_the_length_asked_for(demo_model: Path) -> None:
    assert [len(prompt_of(count, 1)) for count in (1, 64, 4096, 7500)] == [1, 64, 4096, 7500]
    assert prompt_of(64, 1) == prompt_of(64, 1) != prompt_of(64, 2)


@pytest.mark.usefixtures("demo_model")
@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_fit_what_they_announce(name: str) -> None:
    workload = WORKLOADS[name]
    figures, asked = play(name)
    assert max(len(prompt) + num_output for prompt, num_output in asked) <= workload.context_tokens
    assert all(value > 0 for values in figures.values() for value in (values if isinstance(values, list) else [values]))
    assert play(name)[1] == asked  # the same prompts for everybody


@pytest.mark.usefixtures("demo_model")
def test_sizes_of_the_workloads() -> None:
    def sizes(name: str) -> set[tuple[int, int]]:
        return {(len(prompt), num_output) for prompt, num_output in play(name)[1]}

    assert sizes("W1") == {(128, 128)}
    assert (sizes("W2-4096"), sizes("W2-7500")) == ({(4096, 64)}, {(7500, 64)})
    assert (sizes("W3"), sizes("W7")) == ({(512, 128)}, {(4096, 64)})
    assert sizes("W5") == {(100 + 164 * turn, 64) for turn in range(15)}
    assert len(mixed_jobs()) == 32
    assert all(32 <= num_prompt <= 4096 and 16 <= num_output <= 256 for num_prompt, num_output in mixed_jobs())


@pytest.mark.usefixtures("demo_model")
def test_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    _, asked = play("W4")
    prompts = [prompt for prompt, _ in asked]
    assert len(prompts) == 16 and all(prompt[:2000] == prompts[0][:2000] for prompt in prompts)
    assert len({tuple(prompt[2000:]) for prompt in prompts}) == 16


@pytest.mark.usefixtures("demo_model")
def test_a_chat_carries_the_replies() -> None:
    _, asked = play("W5")
    for (before, num_output), (after, _) in pairwise(asked):
        assert after[: len(before)] == before and after[len(before) : len(before) + num_output] == [3] * num_output


@pytest.mark.usefixtures("demo_model")
def test_decode_rate_counts_what_is_decoded_together() -> None:
    figures, asked = play("W7")
    assert len(asked) == 16 and asked[:8] == asked[8:]
    assert figures["decode_tokens_per_s"] == pytest.approx(8 * 1000, rel=0.1)


def test_claims_follow_the_measured_setting() -> None:
    both = default_kv_bits([16, 8])
    assert both in (8, 16) and default_kv_bits([both]) == both
    assert default_kv_bits([24 - both]) == 24 - both  # the other one, where only that was measured
