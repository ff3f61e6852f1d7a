"""What is sent: prompts of the length asked for, prefixes shared where they should be, recordings read as written."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import ConfigError
from kvasir.core.progress import no_progress
from kvasir.loadtest.make_workload import WorkloadMaker
from kvasir.loadtest.plan import Session, Workload
from kvasir.loadtest.prepared import PreparedSession, prepare, reply_body
from kvasir.loadtest.prompt_maker import PromptKind, PromptMaker, WordRate, make_words
from kvasir.loadtest.recordings import RecordingError
from kvasir.loadtest.settings import WorkloadKind, WorkloadSettings
from kvasir.loadtest.target import Api, BodyMaker, BodyOptions
from kvasir.workload.lengths import LengthRange
from kvasir.workload.traces.trace import TraceError

EXACT = WordRate(per_word=1.0, overhead=0.0, is_measured=True)


def make(
    num_sessions: int | None = 5, seed: int = 0, *, chat: bool = False, limit: int | None = None, **given: Any
) -> Workload:
    settings = WorkloadSettings(**given)
    maker = WorkloadMaker(settings=settings, rate=EXACT, max_model_len=limit, is_chat_route=chat)
    return maker.make(num_sessions, seed)


def sessions(workload: Workload) -> list[Session]:
    found = list(workload.sessions)
    assert len(found) == workload.num_sessions
    return found


def prompts(workload: Workload) -> list[Any]:
    return [turn.prompt for session in sessions(workload) for turn in session.turns]


def prepared(workload: Workload, bodies: BodyMaker) -> list[PreparedSession]:
    return asyncio.run(prepare(workload, bodies, no_progress))


def shared(a: Sequence[Any], b: Sequence[Any]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.mark.parametrize("text", ["0", "-3", "9:4", "x", "", "4:", "1:2:3"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ConfigError, match="is no length"):
        LengthRange.parse(text)


def test_lengths_are_log_uniform() -> None:
    """As many between 16 and 64 as between 64 and 256."""
    workload = make(2000, prompt_tokens=LengthRange.parse("16:256"), output_tokens=LengthRange.parse("4"))
    turns = [session.turns[0] for session in sessions(workload)]
    lengths = [turn.num_prompt_tokens for turn in turns]
    assert [len(turn.prompt) for turn in turns] == lengths
    assert min(lengths) == 16 and max(lengths) == 256
    assert 900 < sum(length < 64 for length in lengths) < 1100
    assert {turn.num_output_tokens for turn in turns} == {4}


def test_same_seed_same_prompts_other_seed_nothing_shared() -> None:
    one, again, other = (prompts(make(20, seed)) for seed in (7, 7, 8))
    assert one == again
    assert max(shared(a, b) for a in one for b in other) < 3
    assert max(shared(a, b) for a, b in itertools.combinations(one, 2)) < 3


def test_words_make_up_for_the_template() -> None:
    rate = WordRate.fit((30, 58), (120, 193))
    assert (rate.per_word, rate.overhead, rate.is_measured) == (1.5, 13.0, True)
    maker = PromptMaker(kind=PromptKind.WORDS, seed=0, rate=rate)
    assert len(str(maker.make(1000, 1)).split()) == round((1000 - 13) / 1.5)
    assert len(str(maker.make(1000, 1, has_overhead=False)).split()) == round(1000 / 1.5)
    assert not WordRate.fit((30, 60), (120, 60)).is_measured, "a server that counts nothing tells nothing"


@pytest.mark.parametrize("num_words", [1, 7, 100, 1234])
def test_number_of_words_is_exact(num_words: int) -> None:
    assert len(make_words(num_words, 3).split()) == num_words


@pytest.mark.parametrize("kind", list(PromptKind))
def test_prefixes_are_shared_in_turn(kind: PromptKind) -> None:
    workload = make(
        6,
        kind=WorkloadKind.SHARED_PREFIX,
        prompts=kind,
        prefix_tokens=40,
        num_prefixes=2,
        prompt_tokens=LengthRange.parse("10"),
    )
    texts = [prompt.split() if isinstance(prompt, str) else prompt for prompt in prompts(workload)]
    assert {len(text) for text in texts} == {50}
    for i, j in itertools.combinations(range(6), 2):
        assert (shared(texts[i], texts[j]) >= 40) == (i % 2 == j % 2)
        assert shared(texts[i], texts[j]) < 45


def test_chat_turns_belong_together() -> None:
    workload = make(
        2,
        chat=True,
        kind=WorkloadKind.CHAT,
        prompts=PromptKind.WORDS,
        num_turns=3,
        system_tokens=12,
        think_s=0.5,
        prompt_tokens=LengthRange.parse("20"),
        output_tokens=LengthRange.parse("10"),
    )
    first, second = sessions(workload)
    assert first.opening == second.opening
    assert len(first.opening[0]["content"].split()) == 12
    assert first.grows
    assert [turn.think_s for turn in first.turns] == [0.0, 0.5, 0.5]
    assert [turn.num_prompt_tokens for turn in first.turns] == [32, 62, 92]
    assert len({turn.prompt for session in (first, second) for turn in session.turns}) == 6


def test_later_turns_carry_the_replies() -> None:
    workload = make(1, chat=True, kind=WorkloadKind.CHAT, prompts=PromptKind.WORDS, num_turns=2)
    bodies = BodyMaker(model="m", api=Api.CHAT, options=BodyOptions())
    (session,) = prepared(workload, bodies)
    transcript = session.transcript()
    transcript.ask(session.turns[0].text)
    assert session.turns[0].body == bodies.body(transcript.messages, 128)
    transcript.reply("indeed")
    assert session.turns[1].body is None
    messages = json.loads(reply_body(session.turns[1], transcript, bodies))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == "indeed"


def test_routes_refuse_what_they_cannot_carry() -> None:
    completions = BodyMaker(model="m", api=Api.COMPLETIONS, options=BodyOptions())
    chat = BodyMaker(model="m", api=Api.CHAT, options=BodyOptions())
    growing = make(1, kind=WorkloadKind.CHAT, prompts=PromptKind.WORDS, num_turns=2)
    with pytest.raises(ConfigError, match="use --endpoint chat"):
        prepared(growing, completions)
    with pytest.raises(ConfigError, match="use --prompts words"):
        prepared(make(1, prompts=PromptKind.TOKENS), chat)


def talk(name: str, *said: str) -> dict[str, Any]:
    """A ShareGPT conversation; ``human: ...`` and ``gpt: ...`` in turn."""
    parts = [text.split(": ", 1) for text in said]
    return {"id": name, "conversations": [{"from": speaker, "value": value} for speaker, value in parts]}


SHAREGPT = [
    talk(
        "a",
        "human: one two three four five",
        "gpt: six seven eight nine",
        "human: ten eleven twelve and more",
        "gpt: a b c d e f",
    ),
    talk("short", "human: hi", "gpt: hello there my friend"),
    talk("odd", "gpt: I begin", "human: no you do not"),
    talk("long", "human: " + "w " * 500, "gpt: fine by me then"),
]


def write(path: Path, value: Any) -> Path:
    path.write_text(
        json.dumps(value) if isinstance(value, list) else "\n".join(json.dumps(line) for line in value["lines"])
    )
    return path


def test_sharegpt(tmp_path: Path) -> None:
    path = write(tmp_path / "share.json", SHAREGPT)
    settings: dict[str, Any] = {"kind": WorkloadKind.FILE, "prompts": PromptKind.WORDS, "path": path, "chat": True}
    workload = make(10, limit=100, num_turns=2, **settings)
    (session,) = sessions(workload)
    assert [turn.prompt for turn in session.turns] == ["one two three four five", "ten eleven twelve and more"]
    assert [turn.num_output_tokens for turn in session.turns] == [4, 6]
    assert [turn.num_prompt_tokens for turn in session.turns] == [5, 5 + 4 + 5]
    assert session.grows
    assert workload.num_left_out == 2, "too short and too long; what no user began is no conversation"
    one_turn = make(10, num_turns=1, output_tokens=LengthRange.parse("7"), **settings)
    assert sorted(len(session.turns) for session in sessions(one_turn)) == [1, 1]


def test_openai_lines(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "be kind to all of them"},
        {"role": "user", "content": "what is the capital of France"},
    ]
    path = write(
        tmp_path / "lines.jsonl",
        {
            "lines": [
                {"custom_id": "x", "body": {"messages": messages, "max_tokens": 11}},
                {"prompt": "tell me about the sea", "output_tokens": 9},
                {"prompt": "and of the mountains also", "completion": "they are high and cold"},
                {"prompt": "as long as you like it"},
            ]
        },
    )
    workload = make(4, kind=WorkloadKind.FILE, prompts=PromptKind.WORDS, path=path, chat=True)
    found = {str(session.turns[0].prompt)[:8]: session for session in sessions(workload)}
    assert found["what is "].opening == (messages[0],)
    assert found["what is "].turns[0].num_output_tokens == 11
    assert found["what is "].turns[0].num_prompt_tokens == 6 + 6
    lengths = {name: session.turns[0].num_output_tokens for name, session in found.items()}
    assert lengths == {"what is ": 11, "tell me ": 9, "and of t": 5, "as long ": None}
    with pytest.raises(RecordingError, match="use --endpoint chat"):
        make(4, kind=WorkloadKind.FILE, prompts=PromptKind.WORDS, path=path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2", "is not JSON"),
        ('{"a": 1}\nnonsense', "line 2 is not JSON"),
        ("[]", "has no conversation"),
        ("[3]", "entry 1 is int"),
        ('{"text": "x"}', "none of conversations, messages and prompt"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "do not end with the user"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "content is not text"),
        ('{"prompt": 7}', "prompt that is not text"),
        ('[{"conversations": ["x"]}]', "not a list of objects"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(RecordingError, match=message):
        make(3, kind=WorkloadKind.FILE, prompts=PromptKind.WORDS, path=path, chat=True)


def trace_file(path: Path) -> Path:
    lines = [
        {"timestamp": 0, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 3]},
        {"timestamp": 500, "input_length": 45, "output_length": 4, "hash_ids": [1, 2, 9]},
        {"timestamp": 1000, "input_length": 16, "output_length": 5, "hash_ids": [7]},
        {"timestamp": 1500, "input_length": 400, "output_length": 5, "hash_ids": []},
        {"timestamp": 2000, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize("kind", list(PromptKind))
def test_a_trace_shares_what_its_ids_share(tmp_path: Path, kind: PromptKind) -> None:
    workload = make(
        None,
        kind=WorkloadKind.TRACE,
        prompts=kind,
        path=trace_file(tmp_path / "trace.jsonl"),
        hash_block_size=16,
        speed=2.0,
        limit=100,
    )
    assert workload.has_times
    assert workload.num_left_out == 1
    found = sessions(workload)
    assert [session.arrival_s for session in found] == [0.0, 0.25, 0.5, 1.0]
    assert [session.turns[0].num_output_tokens for session in found] == [3, 4, 5, 1]
    texts = [turn.split() if isinstance(turn := session.turns[0].prompt, str) else turn for session in found]
    assert [len(text) for text in texts] == [40, 45, 16, 40]
    assert 32 <= shared(texts[0], texts[1]) < 36
    assert shared(texts[0], texts[2]) < 4
    assert texts[0] == texts[3]


def test_a_trace_read_with_the_wrong_block_size_is_refused(tmp_path: Path) -> None:
    path = trace_file(tmp_path / "trace.jsonl")
    with pytest.raises(TraceError, match="--hash-block-size"):
        make(None, kind=WorkloadKind.TRACE, path=path)
    with pytest.raises(ConfigError, match="fits the server's context of 10"):
        make(None, kind=WorkloadKind.TRACE, path=path, hash_block_size=16, limit=10)


def test_sessions_of_a_trace_can_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "weka.jsonl"
    entry = {"in": 32, "out": 4, "hash_runs": [[0, 2]], "api_time": 1.0, "stop": "end"}
    session = {
        "id": "s",
        "block_size": 16,
        "requests": [
            entry | {"t": 0.0, "think_time": 0.0},
            entry | {"t": 9.0, "think_time": 2.0, "in": 48, "hash_runs": [[0, 3]]},
        ],
    }
    path.write_text("\n".join(json.dumps(session) for _ in range(2)))
    given: dict[str, Any] = {"kind": WorkloadKind.TRACE, "path": path, "speed": 4.0}
    alone = sessions(make(None, **given))
    followed = sessions(make(None, follows_sessions=True, **given))
    assert [len(session.turns) for session in alone] == [1] * 4
    assert [len(session.turns) for session in followed] == [2, 2]
    assert [turn.think_s for turn in followed[0].turns] == [0.0, 0.5]
    first, second = (turn.prompt for turn in followed[0].turns)
    assert shared(first, second) == 32, "the later request begins with the earlier one"
    assert not followed[0].grows
    bodies = BodyMaker(model="m", api=Api.COMPLETIONS, options=BodyOptions())
    ready = prepared(make(None, follows_sessions=True, **given), bodies)
    assert json.loads(ready[0].turns[1].body or b"")["prompt"] == list(second)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": WorkloadKind.TRACE}, "say which one with --file"),
        ({"path": Path("x")}, "--file has no part"),
        ({"prefix_tokens": 0}, "at least 1"),
        ({"token_ids": (9, 9)}, "a range like"),
        ({"prompts": PromptKind.WORDS, "token_ids": (1, 9)}, "no part in prompts of words"),
    ],
)
def test_settings_that_mean_nothing(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkloadSettings(**given)


def test_random_ids_stay_in_their_range() -> None:
    ids = {token_id for prompt in prompts(make(3, token_ids=(5, 8))) for token_id in prompt}
    assert ids == {5, 6, 7, 8}


def test_making_prompts_can_be_stopped() -> None:
    workload = make(100)
    bodies = BodyMaker(model="m", api=Api.COMPLETIONS, options=BodyOptions())
    calls = iter([False] * 9 + [True])
    assert len(asyncio.run(prepare(workload, bodies, no_progress, lambda: next(calls)))) == 10
