"""Every trace format in small: what is read, how the format is seen, which lines are refused and why."""

import json

import pytest

from kvasir.core.events import RequestFinishedEvent
from kvasir.core.sequence import FinishReason
from kvasir.workload.traces.mooncake import read_mooncake, write_mooncake
from kvasir.workload.traces.read import ReadOptions, TraceFormat, detect_format, read_trace
from kvasir.workload.traces.request_log import RequestLogLine
from kvasir.workload.traces.trace import IdRuns, Trace, TraceError, TraceRequest


def written(tmp_path, name, lines):
    path = tmp_path / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


MOONCAKE = [
    {"timestamp": 27, "input_length": 1200, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 3027, "input_length": 1024, "output_length": 0, "hash_ids": [0, 7]},
]


def test_mooncake(tmp_path):
    trace = read_trace(written(tmp_path, "m.jsonl", MOONCAKE))
    first, second = trace.requests
    assert (first.arrival_s, second.arrival_s) == (0.0, 3.0)
    assert (first.num_prompt_tokens, first.num_output_tokens, first.hash_ids) == (1200, 5, (0, 1, 2))
    assert second.num_output_tokens == 1  # a prompt always gets its first token
    assert trace.hash_block_size == 512 and trace.rate == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}, "2 hash_ids.*512 tokens"),
        ({"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}, "input_length = 0"),
        ({"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": []}, "timestamp = -1"),
        ({"timestamp": 0, "input_length": 5.5, "output_length": 1, "hash_ids": []}, "input_length = 5.5"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": ["a"]}, "whole numbers"),
        ({"timestamp": 0, "input_length": True, "output_length": 1}, "input_length = True"),
        ("{not json", "line 2 is not JSON"),
        ("[1]", "line 2 is list"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    path = written(tmp_path, "bad.jsonl", [MOONCAKE[0], line])
    with pytest.raises(TraceError, match=words) as error:
        read_trace(path)
    assert "bad.jsonl line 2" in str(error.value)


def test_emitted_mooncake_reads_back_the_same(tmp_path):
    trace = read_mooncake(written(tmp_path, "m.jsonl", MOONCAKE))
    write_mooncake(trace, tmp_path / "m2.jsonl")
    again = read_mooncake(tmp_path / "m2.jsonl")
    assert again.requests == trace.requests


def test_azure_times_keep_their_seventh_digit(tmp_path):
    path = written(
        tmp_path,
        "azure.csv",
        [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2023-11-16 18:17:03.9799600,4808,10",
            "2023-11-16 18:17:04.0319601,3180,8",
        ],
    )
    trace = read_trace(path)
    assert trace.requests[1].arrival_s == pytest.approx(0.0520001, abs=1e-6)
    assert [r.num_prompt_tokens for r in trace.requests] == [4808, 3180]
    assert trace.hash_block_size == 0


def test_azure_with_a_time_that_is_none(tmp_path):
    path = written(tmp_path, "azure.csv", ["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,4808,10"])
    with pytest.raises(TraceError, match="line 2 has TIMESTAMP = 'yesterday'"):
        read_trace(path)


def test_burst_gpt_leaves_out_failed_requests(tmp_path):
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    rows = [
        "5,,1,ChatGPT,472,18,490,Conversation log",
        "45,,1,ChatGPT,1087,0,1087,API log",
        "118,,1,GPT-4,417,276,693,API log",
    ]
    trace = read_trace(written(tmp_path, "burst.csv", [header, *rows]))
    assert [(r.arrival_s, r.num_output_tokens) for r in trace.requests] == [(0.0, 18), (113.0, 276)]


def test_lengths_without_times_all_arrive_at_once(tmp_path):
    path = written(
        tmp_path,
        "lengths.csv",
        ["num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", "3772,54,3826,69.8", "10,3,13,3"],
    )
    trace = read_trace(path)
    assert not trace.has_times and trace.rate == float("inf")
    assert [r.arrival_s for r in trace.requests] == [0.0, 0.0]


WEKA = [
    {
        "id": "a",
        "block_size": 64,
        "requests": [
            {"t": 0.0, "in": 200, "out": 9, "hash_runs": [[1, 3]], "think_time": 0.0},
            {"t": 19.0, "in": 300, "out": 4, "hash_runs": [[1, 2], [9, 2]], "think_time": 12.0},
        ],
    },
    {
        "id": "b",
        "block_size": 64,
        "requests": [{"t": 0.0, "in": 64, "out": 2, "hash_runs": [[1, 1]], "think_time": None}],
    },
]


def test_weka_sessions_keep_their_own_time_and_share_nothing(tmp_path):
    trace = read_trace(written(tmp_path, "weka.jsonl", WEKA), ReadOptions(session_rate=0.1, seed=3))
    by_session = {}
    for request in trace.requests:
        by_session.setdefault(request.session_id, []).append(request)
    first, second = by_session["0"]
    assert second.arrival_s - first.arrival_s == 19.0 and second.think_s == 12.0
    assert tuple(first.hash_ids) == (1, 2, 3) and tuple(second.hash_ids) == (1, 2, 9, 10)
    assert not set(first.hash_ids) & set(by_session["1"][0].hash_ids)
    assert trace.hash_block_size == 64


def test_weka_starts_follow_rate_and_seed(tmp_path):
    path = written(tmp_path, "weka.jsonl", WEKA)

    def start(rate, seed):
        trace = read_trace(path, ReadOptions(session_rate=rate, seed=seed))
        return next(r.arrival_s for r in trace.requests if r.session_id == "1")

    assert start(0.1, 1) == start(0.1, 1) != start(0.1, 2)
    assert start(0.2, 1) == pytest.approx(start(0.1, 1) / 2)
    with pytest.raises(TraceError, match="rate of 0"):
        start(0.0, 1)


def test_bailian_follows_parents_to_the_root(tmp_path):
    lines = [
        {
            "chat_id": 5,
            "parent_chat_id": -1,
            "timestamp": 0.5,
            "input_length": 40,
            "output_length": 3,
            "type": "text",
            "turn": 1,
            "hash_ids": [1, 2, 3],
        },
        {
            "chat_id": 6,
            "parent_chat_id": 5,
            "timestamp": 9.5,
            "input_length": 80,
            "output_length": 3,
            "type": "text",
            "turn": 2,
            "hash_ids": [1, 2, 4, 5, 6],
        },
        {
            "chat_id": 7,
            "parent_chat_id": 6,
            "timestamp": 20.5,
            "input_length": 16,
            "output_length": 3,
            "type": "text",
            "turn": 3,
            "hash_ids": [1],
        },
    ]
    trace = read_trace(written(tmp_path, "qwen.jsonl", lines))
    assert [r.session_id for r in trace.requests] == ["5", "5", "5"]
    assert [r.arrival_s for r in trace.requests] == [0.0, 9.0, 20.0]
    assert trace.hash_block_size == 16


class Letters:
    """A token is a character; a chat is its contents in order."""

    def __init__(self):
        self.num_calls = 0

    def encode(self, text, add_special_tokens=True):
        self.num_calls += 1
        return [ord(letter) for letter in text]

    def encode_chat(self, messages):
        return self.encode("".join(message["content"] for message in messages))


def test_openai_lines_are_tokenised_and_share_whole_blocks(tmp_path):
    system = "x" * 20
    lines = [
        {
            "custom_id": "one",
            "method": "POST",
            "url": "/v1/chat/completions",
            "timestamp": 100.0,
            "body": {
                "messages": [{"role": "system", "content": system}, {"role": "user", "content": "a" * 20}],
                "max_tokens": 7,
            },
        },
        {
            "custom_id": "two",
            "timestamp": 102.5,
            "body": {"prompt": system + "b" * 12},
            "response": {"body": {"usage": {"completion_tokens": 31}}},
        },
        {"prompt": [1, 2, 3], "timestamp": 103},
    ]
    tokenizer = Letters()
    trace = read_trace(written(tmp_path, "log.jsonl", lines), ReadOptions(make_tokenizer=lambda: tokenizer))
    first, second, third = trace.requests
    assert (first.num_prompt_tokens, first.num_output_tokens, first.arrival_s) == (40, 7, 0.0)
    assert (second.num_prompt_tokens, second.num_output_tokens, second.arrival_s) == (32, 31, 2.5)
    assert (third.num_prompt_tokens, third.num_output_tokens, third.hash_ids) == (3, 128, ())
    assert first.hash_ids[0] == second.hash_ids[0] and first.hash_ids[1] != second.hash_ids[1]


def test_texts_without_a_tokenizer_are_refused(tmp_path):
    path = written(tmp_path, "log.jsonl", [{"prompt": "hello"}])
    with pytest.raises(TraceError, match="holds texts"):
        read_trace(path)


@pytest.mark.parametrize("body", [{"messages": []}, {"prompt": ""}, {"prompt": ["a"]}, {"messages": None, "prompt": 5}])
def test_openai_line_without_a_prompt_is_refused(tmp_path, body):
    path = written(tmp_path, "log.jsonl", [{"body": {"prompt": "x"}}, {"body": body}])
    with pytest.raises(TraceError, match="line 2 has neither messages nor a prompt"):
        read_trace(path, ReadOptions(make_tokenizer=Letters))


def log_line(request_id, arrival_s, num_prompt, keys, **changes):
    event = RequestFinishedEvent(
        request_id=request_id, finish_reason=FinishReason.STOP, num_prompt_tokens=num_prompt, num_cached_tokens=16,
        num_output_tokens=changes.pop("num_output_tokens", 9), queue_s=0.1, ttft_s=0.4, e2e_s=2.0,
    )  # fmt: skip
    return RequestLogLine.from_event(event, arrival_s=arrival_s, block_size=16, block_keys=keys).to_json()


def test_our_request_log_keeps_what_is_shared_and_no_text(tmp_path):
    keys = [bytes([i]) * 32 for i in range(4)]
    lines = [log_line("a", 1000.0, 40, keys[:2]), log_line("b", 1001.5, 55, [keys[0], *keys[2:]])]
    path = written(tmp_path, "requests.jsonl", lines)
    assert detect_format(path) is TraceFormat.REQUEST_LOG
    first, second = read_trace(path).requests
    assert len(first.hash_ids) == 2 and len(second.hash_ids) == 3
    assert first.hash_ids[0] == second.hash_ids[0] and first.hash_ids[1] not in second.hash_ids
    assert second.arrival_s == 1.5
    assert json.loads(lines[0])["block_keys"][0] == "00" * 8


def test_requests_that_never_answered_are_left_out_of_our_log(tmp_path):
    path = written(tmp_path, "r.jsonl", [log_line("a", 0.0, 20, [], num_output_tokens=0), log_line("b", 1.0, 20, [])])
    assert [r.request_id for r in read_trace(path).requests] == ["b"]


def test_our_log_of_another_version_is_refused(tmp_path):
    line = json.loads(log_line("a", 0.0, 20, [])) | {"kvasir_request_log": 2}
    with pytest.raises(TraceError, match="version 1"):
        read_trace(written(tmp_path, "r.jsonl", [line]))


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (json.dumps(MOONCAKE[0]), TraceFormat.MOONCAKE),
        (json.dumps(WEKA[0]), TraceFormat.WEKA),
        ('{"chat_id": 1, "input_length": 5, "output_length": 1, "timestamp": 0}', TraceFormat.BAILIAN),
        ('{"body": {"messages": []}}', TraceFormat.OPENAI),
        ('{"prompt": "x"}', TraceFormat.OPENAI),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", TraceFormat.AZURE),
        ("Timestamp,Request tokens,Response tokens", TraceFormat.BURST_GPT),
        ("num_prefill_tokens,num_decode_tokens", TraceFormat.LENGTHS),
    ],
)
def test_the_format_is_seen_from_the_first_line(tmp_path, first, expected):
    assert detect_format(written(tmp_path, "t", [first])) is expected


def test_an_unknown_format_is_refused_with_what_it_has(tmp_path):
    with pytest.raises(TraceError, match=r"none of the known traces.*colour"):
        detect_format(written(tmp_path, "t.csv", ["colour,size"]))


def test_a_missing_file_and_an_empty_one(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="has no requests"):
        read_trace(written(tmp_path, "e.csv", ["num_prefill_tokens,num_decode_tokens"]))


def test_names_must_differ(tmp_path):
    lines = [{"custom_id": "a", "prompt": [1]}, {"custom_id": "a", "prompt": [2]}]
    with pytest.raises(TraceError, match="two requests named 'a'"):
        read_trace(written(tmp_path, "t.jsonl", lines), ReadOptions(make_tokenizer=Letters))


def test_arrivals_are_sorted_and_start_at_zero(tmp_path):
    lines = [MOONCAKE[0] | {"timestamp": 9000}, MOONCAKE[1] | {"timestamp": 4000}]
    trace = read_trace(written(tmp_path, "t.jsonl", lines))
    assert [(r.request_id, r.arrival_s) for r in trace.requests] == [("1", 0.0), ("0", 5.0)]


def test_traces_are_cut_and_sped_up():
    requests = tuple(
        TraceRequest(request_id=str(i), arrival_s=10.0 * i, num_prompt_tokens=i + 1, num_output_tokens=2, think_s=4.0)
        for i in range(4)
    )
    trace = Trace(name="t", requests=requests)
    assert trace.head(2).duration_s == 10.0
    assert [(r.arrival_s, r.think_s) for r in trace.faster(2).requests[:2]] == [(0.0, 2.0), (5.0, 2.0)]
    assert [r.arrival_s for r in trace.at([1, 2, 3, 4]).requests] == [1, 2, 3, 4]
    assert len(trace.where(lambda r: r.num_prompt_tokens > 2)) == 2
    assert (trace.num_prompt_tokens, trace.num_output_tokens) == (10, 8)
    with pytest.raises(TraceError):
        trace.faster(0)
    with pytest.raises(ValueError):
        trace.at([1.0])


def test_runs_of_ids_read_as_the_ids():
    runs = IdRuns([range(3, 6), range(9, 10)])
    assert list(runs) == [3, 4, 5, 9] == [runs[i] for i in range(4)]
    assert runs[1:3] == (4, 5) and len(runs) == 4 and runs == (3, 4, 5, 9) and runs != (3, 4)
