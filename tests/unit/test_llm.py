"""The offline front door on a tiny random model with a real tokenizer."""

import numpy as np
import pytest
from runner_setup import save_tiny_chat_model

import kvasir
from kvasir.core.errors import BadRequestError, ConfigError, ContextLengthError, InvariantViolation, OverloadedError
from kvasir.core.sampling import SamplingParams
from kvasir.engine.config import EngineConfig
from kvasir.engine.flags import make_engine_config
from kvasir.engine.llm import LLM

FLAGS = {"kv_cache_memory": "4MiB", "threads": 1, "max_num_seqs": 8}
PROMPTS = ["The quick brown fox", "Il était une fois", "def area(radius):", "素早い狐が", "One hundred and"]


def greedy(max_tokens: int = 12, **rest) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **rest)


def seeded(seed: int, max_tokens: int = 12, **rest) -> SamplingParams:
    return SamplingParams(temperature=0.9, seed=seed, max_tokens=max_tokens, ignore_eos=True, **rest)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), **FLAGS) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        while llm.engine.has_work:
            llm._step()
        llm.engine.audit()
        assert llm._collectors == {}
        assert llm.engine.stats().num_running == llm.engine.stats().num_waiting == 0


def test_the_package_offers_it_lazily():
    assert kvasir.LLM is LLM
    assert kvasir.SamplingParams is SamplingParams


def test_one_prompt_many_prompts_and_token_ids(llm):
    many = llm.generate(PROMPTS, greedy())
    assert [output.prompt for output in many] == PROMPTS
    for prompt, output in zip(PROMPTS, many, strict=True):
        assert llm.generate(prompt, greedy())[0].outputs == output.outputs
        for ids in (llm.tokenizer.encode(prompt), np.array(llm.tokenizer.encode(prompt))):
            (same,) = llm.generate(ids, greedy())
            assert same.prompt is None
            assert same.prompt_token_ids == output.prompt_token_ids
            assert same.outputs == output.outputs
    assert len({output.text for output in many}) == len(PROMPTS)
    assert llm.generate([], greedy()) == []


def test_every_prompt_has_its_own_settings(llm):
    params = [greedy(3), seeded(1, 5), seeded(2, 7), greedy(9), SamplingParams(max_tokens=11, ignore_eos=True)]
    outputs = llm.generate(PROMPTS, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5, 7, 9, 11]
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)
    with pytest.raises(BadRequestError, match="2 sampling_params were given for 5 prompts"):
        llm.generate(PROMPTS, params[:2])


def test_a_seeded_request_is_the_same_alone_and_among_others(llm):
    alone = [llm.generate(prompt, seeded(i))[0].outputs for i, prompt in enumerate(PROMPTS)]
    noise = [SamplingParams(temperature=1.5, max_tokens=20)] * 4
    together = llm.generate(["noise"] * 4 + PROMPTS, noise + [seeded(i) for i in range(5)])
    assert [output.outputs for output in together[4:]] == alone


def test_unseeded_requests_follow_the_engines_seed(folder):
    def texts(seed: int) -> list[str]:
        with LLM(str(folder), seed=seed, **FLAGS) as llm:
            return [output.text for output in llm.generate(PROMPTS[:2], SamplingParams(max_tokens=12))]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_parallel_samples_are_numbered_and_differ(llm):
    (output,) = llm.generate(PROMPTS[0], seeded(5, n=4))
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({completion.token_ids for completion in output.outputs}) == 4
    assert output.outputs[0].token_ids == llm.generate(PROMPTS[0], seeded(5))[0].outputs[0].token_ids


def test_logprobs_are_one_list_per_token(llm):
    (output,) = llm.generate(PROMPTS[0], greedy(6, logprobs=3, ignore_eos=True))
    completion = output.outputs[0]
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    for entry in completion.logprobs:
        assert entry.rank == 1
        assert len(entry.top) == 3
        assert (entry.top[0].token_id, entry.top[0].logprob) == (entry.token_id, entry.logprob)
        assert [top.logprob for top in entry.top] == sorted((top.logprob for top in entry.top), reverse=True)
    assert llm.generate(PROMPTS[0], greedy(2))[0].outputs[0].logprobs is None


def test_a_stop_string_ends_the_text_before_it_and_stops_the_engine(llm):
    whole = llm.generate(PROMPTS[0], seeded(3, 40))[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    before = llm.engine.stats().num_generated_tokens
    (output,) = llm.generate(PROMPTS[0], seeded(3, 40, stop=(stop,)))
    completion = output.outputs[0]
    assert completion.text == whole[: whole.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert llm.engine.stats().num_generated_tokens - before == len(completion.token_ids) < 40


def test_a_stop_string_in_one_of_several_samples_leaves_the_others(llm):
    (free,) = llm.generate(PROMPTS[0], seeded(6, 30, n=3))
    stop = free.outputs[1].text[5:9]
    assert stop not in free.outputs[0].text + free.outputs[2].text
    (output,) = llm.generate(PROMPTS[0], seeded(6, 30, n=3, stop=(stop,)))
    assert [completion.finish_reason for completion in output.outputs] == ["length", "stop", "length"]
    assert output.outputs[0] == free.outputs[0]
    assert output.outputs[2] == free.outputs[2]


def test_stop_token_ids_and_min_tokens(llm):
    tokens = llm.generate(PROMPTS[0], greedy(10, ignore_eos=True))[0].outputs[0].token_ids
    stop = next(token for i, token in enumerate(tokens) if i >= 2 and token not in tokens[:i])
    (output,) = llm.generate(PROMPTS[0], greedy(10, ignore_eos=True, stop_token_ids=(stop,)))
    assert output.outputs[0].token_ids == tokens[: tokens.index(stop) + 1]
    assert output.outputs[0].stop_reason == stop
    late = greedy(10, ignore_eos=True, stop_token_ids=(stop,), min_tokens=9)
    assert stop not in llm.generate(PROMPTS[0], late)[0].outputs[0].token_ids[:9]


def test_a_stream_is_the_whole_in_pieces(llm):
    (whole,) = llm.generate(PROMPTS[1], seeded(8, 20, n=2, logprobs=1))
    stream = llm.generate_stream(PROMPTS[1], seeded(8, 20, n=2, logprobs=1))
    chunks = list(stream)
    assert len(chunks) > 10
    for index in range(2):
        own = [chunk.delta for chunk in chunks if chunk.index == index]
        assert "".join(delta.text for delta in own) == whole.outputs[index].text
        assert sum((delta.logprobs for delta in own), ()) == whole.outputs[index].logprobs
        assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
    assert stream.output.outputs == whole.outputs
    assert stream.output.metrics.ttft_s > 0


def test_streams_can_be_read_in_turns_with_other_work_between(llm):
    expected = [llm.generate(prompt, seeded(i, 15))[0].text for i, prompt in enumerate(PROMPTS[:3])]
    streams = [llm.generate_stream(prompt, seeded(i, 15)) for i, prompt in enumerate(PROMPTS[:3])]
    texts = ["", "", ""]
    texts[0] += next(streams[0]).text
    assert llm.generate(PROMPTS[4], seeded(4, 5))[0].text
    for i in (2, 1, 0):
        for chunk in streams[i]:
            texts[i] += chunk.text
    assert texts == expected


def test_leaving_a_stream_early_aborts_its_request(llm):
    with llm.generate_stream(PROMPTS[0], seeded(1, 400)) as stream:
        next(stream)
        assert llm.engine.stats().num_running == 1
    assert llm.engine.stats().num_running == 0
    assert stream.output is None
    assert list(stream) == []


def test_an_interrupted_generate_leaves_the_engine_usable(llm, monkeypatch):
    step, count = llm.engine.step, iter(range(100))

    def interrupted():
        if next(count) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, seeded(1, 100))
    monkeypatch.undo()
    assert llm.engine.stats().num_running == 0
    assert len(llm.generate(PROMPTS[0], greedy(4, ignore_eos=True))[0].outputs[0].token_ids) == 4


@pytest.mark.parametrize(
    ("prompts", "params", "error"),
    [
        (["short", "word " * 600], greedy(), ContextLengthError),
        (["short", ""], greedy(), BadRequestError),
        (["short", [5, 100_000]], greedy(), BadRequestError),
        (["short", [5, 1.5]], greedy(), BadRequestError),
        (["short", "short"], [greedy(), greedy(2, logit_bias=((100_000, 1.0),))], BadRequestError),
    ],
)
def test_a_refusal_comes_before_anything_runs(llm, prompts, params, error):
    before = llm.engine.stats()
    with pytest.raises(error):
        llm.generate(prompts, params)
    after = llm.engine.stats()
    assert (after.num_computed_tokens, after.num_running, after.num_waiting) == (before.num_computed_tokens, 0, 0)


def test_chat_goes_through_the_template_and_reuses_its_history(llm):
    messages = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 3}]
    (first,) = llm.chat(messages, greedy(8))
    assert first.prompt == f"<|begin|>user: {messages[0]['content']}<|end|><|begin|>assistant: "
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    (second,) = llm.chat(messages, greedy(8))
    assert second.num_cached_tokens >= len(first.prompt_token_ids) // 16 * 16 - 16 > 0
    stream = llm.chat_stream(messages, greedy(8))
    assert "".join(chunk.text for chunk in stream) == second.text
    both = llm.chat([messages[:1], messages], greedy(8))
    assert [output.outputs for output in both] == [first.outputs, second.outputs]


def test_more_prompts_than_a_servers_queue_would_hold(folder):
    with LLM(str(folder), **FLAGS) as llm:
        outputs = llm.generate([[5 + i % 90] for i in range(4200)], greedy(1))
    assert len(outputs) == 4200
    with LLM(str(folder), max_waiting=3, **FLAGS) as llm, pytest.raises(OverloadedError):
        llm.generate([[5]] * 4, greedy(1))


def test_unknown_flags_are_refused_by_name():
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        LLM("demo", max_num_sequences=3)


def test_a_parsed_configuration_is_taken_as_it_is(folder):
    config = make_engine_config(model=str(folder), max_waiting=2, **FLAGS)
    with LLM.from_config(config) as llm:
        assert isinstance(llm.engine.config, EngineConfig)
        assert llm.engine.config.scheduler.max_waiting == 2


def test_closing_twice_is_fine_and_nothing_runs_afterwards(folder):
    llm = LLM(str(folder), **FLAGS)
    llm.close()
    llm.close()
    with pytest.raises(InvariantViolation):
        llm.generate(PROMPTS[0], greedy())
