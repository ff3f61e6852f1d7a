"""Loads: the same seed gives the same text and lengths, and the driver keeps every token and its time."""

import itertools
from collections.abc import Sequence

import pytest

from kvasir.core.clock import MonotonicClock
from kvasir.core.errors import KvasirError
from kvasir.core.events import Event
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.core.step import SampledToken, StepPlan, StepResult
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.scheduling.config import SchedulerConfig
from kvasir.scheduling.scheduler import Scheduler
from kvasir.workload.chat_turns import ChatShape, play_chat
from kvasir.workload.driver import LoadResult, play
from kvasir.workload.lengths import LengthMix
from kvasir.workload.prompts import make_text, make_text_of, make_token_ids


class CountingEngine:
    """The real scheduler and cache over an executor that counts: token k of any sequence is k."""

    def __init__(self, fail_sequence: int | None = None) -> None:
        geometry = KVGeometry(num_layers=1, num_kv_heads=1, head_dim=16, sliding_windows=(None,))
        layout = KVLayout.from_geometry(geometry, block_size=16, k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32)
        config = KVManagerConfig(layout=layout, num_blocks=(512,), max_model_len=4096, max_chunk_tokens=256)
        self.scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=256), KVManager(config), MonotonicClock())
        self.fail_sequence = fail_sequence

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add_request(self, request: Request) -> None:
        self.scheduler.add(request)

    def step(self) -> list[Event]:
        plan = self.scheduler.schedule()
        assert plan is not None
        return self.scheduler.apply(self._compute(plan))

    def _compute(self, plan: StepPlan) -> StepResult:
        failed = {s: "not a number" for row in plan.rows for s in row.sample_for if s == self.fail_sequence}
        tokens = tuple(
            SampledToken(sequence_id, row.position + len(row.token_ids))
            for row in plan.rows
            for sequence_id in row.sample_for
            if sequence_id not in failed
        )
        return StepResult(step_id=plan.step_id, tokens=tokens, failed=failed)


class LetterTokenizer:
    """A token is a character."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(1000 + token_id) for token_id in token_ids)


def request(name: str, num_prompt: int, num_output: int, n: int = 1) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=tuple(range(num_prompt)),
        sampling=SamplingParams(max_tokens=num_output, n=n, ignore_eos=True),
    )


def test_text_is_a_function_of_its_seed() -> None:
    assert make_text(3, seed=7) == make_text(3, seed=7)
    assert make_text(3, seed=7) != make_text(3, seed=8)
    assert make_text(3, seed=7).count(".") == 3


def test_text_of_a_length_is_the_shortest_that_reaches_it() -> None:
    text = make_text_of(100, seed=1, count_tokens=lambda text: len(text.split()))
    assert len(text.split()) >= 100
    assert len(text.rsplit(". ", 1)[0].split()) < 100


def test_token_ids_stay_in_range() -> None:
    ids = make_token_ids(500, seed=3, first_id=10, last_id=12)
    assert set(ids) == {10, 11, 12}
    assert ids != make_token_ids(500, seed=4, first_id=10, last_id=12)


def test_length_mix_is_clipped_and_mixed() -> None:
    mix = LengthMix(prompt_median=100, prompt_max=400, output_median=20, output_max=60)
    lengths = mix.draw(400, seed=0)
    assert lengths == mix.draw(400, seed=0)
    prompts, outputs = zip(*lengths, strict=True)
    assert min(prompts) >= 8
    assert max(prompts) == 400
    assert max(outputs) == 60
    assert 80 <= sorted(prompts)[200] <= 125


def test_play_keeps_every_token_and_its_time() -> None:
    num_steps = 0

    def count(so_far: LoadResult) -> None:
        nonlocal num_steps
        num_steps += 1
        assert so_far.num_steps == num_steps

    load = play(CountingEngine(), [request("a", 40, 5), request("b", 3, 2, n=2)], on_step=count)
    assert load.num_steps == num_steps == 5
    assert load.token_ids == {("a", 0): [40, 41, 42, 43, 44], ("b", 0): [3, 4], ("b", 1): [3, 4]}
    assert load.num_output_tokens == 9
    assert [event.request_id for event in load.finished] == ["b", "a"]
    times = load.token_times_s["a", 0]
    assert times == sorted(times)
    assert 0 < load.ttft_s("b") <= times[0] < times[-1] <= load.duration_s
    assert load.output_tokens_per_s == pytest.approx(9 / load.duration_s)


def test_a_failed_request_fails_the_load() -> None:
    with pytest.raises(KvasirError, match="a ended with an error: not a number"):
        play(CountingEngine(fail_sequence=0), [request("a", 4, 4)])


def test_chat_grows_and_is_cached() -> None:
    shape = ChatShape(num_turns=4, new_tokens_per_turn=100, output_tokens_per_turn=8)
    seen = []
    turns = play_chat(CountingEngine(), LetterTokenizer(), shape, on_turn=seen.append)
    assert seen == turns
    assert [turn.turn for turn in turns] == [1, 2, 3, 4]
    assert all(len(turn.reply) == 8 for turn in turns)
    assert turns[0].num_cached_tokens == 0
    for before, turn in itertools.pairwise(turns):
        assert turn.num_prompt_tokens > before.num_prompt_tokens + 100
        # The letters of a reply are not its tokens here, so the prompt before is what the cache can know.
        assert turn.num_cached_tokens == before.num_prompt_tokens // 16 * 16
        assert turn.ttft_s > 0
