"""The runner on a tiny random model: against transformers, and against itself in every way a plan can be cut."""

import random
from dataclasses import replace

import pytest
import torch
import transformers
from runner_setup import (
    BLOCK,
    GREEDY,
    MAX_LEN,
    VOCAB,
    Driver,
    Stream,
    generate_alone,
    make_runner,
    save_tiny_llama,
    save_tiny_mistral,
)

from kvasir.core.errors import InvariantViolation
from kvasir.core.sampling import SamplingParams
from kvasir.core.step import BlockCopy, StepRow, TableUpdate
from kvasir.engine.config import KernelChoice, WeightDtype

KERNELS = [KernelChoice.REFERENCE, KernelChoice.AUTO]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    return save_tiny_mistral(tmp_path_factory.mktemp("mistral"), window=20)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


def scattered_blocks(seed: int, num_blocks: int = 64) -> list[int]:
    blocks = list(range(num_blocks))
    random.Random(seed).shuffle(blocks)
    return blocks


def oracle_logits(folder, token_ids: list[int]) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


@pytest.mark.parametrize("kernels", KERNELS)
def test_logits_of_every_position_match_transformers(llama, kernels):
    tokens = prompt_of(50)
    driver = Driver(make_runner(llama, kernels=kernels, weight_dtype=WeightDtype.FP32))
    stream = Stream(5, tokens, scattered_blocks(1))
    logits = driver.runner.forward_logits(driver.plan([stream.row(50)], starts=(stream,)))
    assert logits.shape == (50, VOCAB)
    assert torch.allclose(logits, oracle_logits(llama, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kernels", KERNELS)
def test_sliding_windows_match_transformers_in_chunks(mistral, kernels):
    tokens = prompt_of(70, seed=3)
    driver = Driver(make_runner(mistral, kernels=kernels, weight_dtype=WeightDtype.FP32))
    stream = Stream(0, tokens, scattered_blocks(2))
    parts = [driver.runner.forward_logits(driver.plan([stream.row(25)], starts=(stream,)))]
    parts += [driver.runner.forward_logits(driver.plan([stream.row(n)])) for n in (1, 30, 14)]
    assert torch.allclose(torch.cat(parts), oracle_logits(mistral, tokens), atol=1e-4, rtol=1e-4)


def test_several_sequences_in_one_step_match_transformers(llama):
    driver = Driver(make_runner(llama, weight_dtype=WeightDtype.FP32))
    blocks = scattered_blocks(4)
    streams = [Stream(i, prompt_of(n, seed=i), blocks[16 * i : 16 * i + 16]) for i, n in enumerate((33, 1, 16, 20))]
    rows = [stream.row(len(stream.prompt)) for stream in streams]
    logits = driver.runner.forward_logits(driver.plan(rows, starts=tuple(streams)))
    expected = torch.cat([oracle_logits(llama, stream.prompt) for stream in streams])
    assert torch.allclose(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(temperature=0.8, seed=9, top_p=0.9)], ids=["greedy", "0.8"]
)
def test_tokens_do_not_depend_on_chunks_batch_mates_or_blocks(llama, kernels, sampling):
    prompt, num_tokens = prompt_of(45, seed=7), 12
    expected = generate_alone(llama, prompt, num_tokens, sampling, kernels=kernels)
    for chunk in (1, 7, 16, 45):
        driver = Driver(make_runner(llama, kernels=kernels, seed=chunk))
        blocks = scattered_blocks(chunk)
        stream = Stream(3, prompt, blocks[:8], sampling)
        mates = [Stream(10 + i, prompt_of(5 + i, seed=i), blocks[8 + 8 * i : 16 + 8 * i]) for i in range(3)]
        mates[2].sampling = SamplingParams(temperature=1.0)
        starts = (*mates, stream)
        while len(stream.output) < num_tokens:
            rows = [mate.row(len(mate.tokens) - mate.num_computed) for mate in mates]
            rows.insert(random.Random(driver.num_steps).randrange(4), stream.row(min(chunk, _missing(stream))))
            driver.step(rows, starts=starts)
            starts = ()
        assert stream.output == expected


def _missing(stream: Stream) -> int:
    return len(stream.tokens) - stream.num_computed


def test_a_preempted_sequence_comes_back_to_the_same_tokens(llama):
    sampling = SamplingParams(temperature=0.9, seed=4, repetition_penalty=1.2)
    prompt = prompt_of(20, seed=5)
    expected = generate_alone(llama, prompt, 14, sampling)
    driver = Driver(make_runner(llama, max_num_seqs=1))
    stream = Stream(0, prompt, list(range(8)), sampling)
    driver.step([stream.row(20)], starts=(stream,))
    for _ in range(5):
        driver.step([stream.row(1)])
    other = Stream(1, prompt_of(30, seed=6), list(range(8)))
    driver.step([other.row(30)], starts=(other,), ended=(0,))
    stream.num_computed, stream.blocks = 0, list(range(20, 30))
    driver.step([stream.row(len(stream.tokens))], starts=(stream,), ended=(1,))
    while len(stream.output) < 14:
        driver.step([stream.row(1)])
    assert stream.output == expected


def test_a_prefix_computed_by_another_sequence_gives_the_same_tokens(llama):
    shared, rest = prompt_of(32, seed=8), prompt_of(9, seed=9)
    expected = generate_alone(llama, shared + rest, 8)
    driver = Driver(make_runner(llama))
    first = Stream(0, [*shared, 5], [9, 3, 7])
    driver.step([first.row(33)], starts=(first,))
    second = Stream(1, shared + rest, [9, 3, 40, 41])
    second.num_computed = 32
    row = second.row(9)._replace(table_updates=(TableUpdate(0, 0, (9, 3, 40)),))
    driver.step([row], starts=(second,), ended=(0,))
    for _ in range(7):
        driver.step([second.row(1)])
    assert second.output == expected


@pytest.mark.parametrize("length", [16, 21])
def test_siblings_share_the_prompt_and_copy_on_write(llama, length):
    """n = 3: one row draws for all, then each goes on in its own copy of the last, partly filled block."""
    prompt = prompt_of(length, seed=10)
    sampling = SamplingParams(n=3, temperature=1.0, seed=21)
    whole = length // BLOCK
    driver = Driver(make_runner(llama))
    streams = [Stream(i, prompt, [*range(whole), 20 + 10 * i, 21 + 10 * i], sampling, index=i) for i in range(3)]
    streams[0].blocks[whole] = 19
    result = driver.step([streams[0].row(length, siblings=(1, 2))], starts=tuple(streams))
    assert [token.sequence_id for token in result.tokens] == [0, 1, 2]
    copies = tuple(BlockCopy(0, 19, s.blocks[whole]) for s in streams[1:]) if length % BLOCK else ()
    rows = [streams[0].row(1)]
    for stream in streams[1:]:
        stream.num_computed = length
        whole_table = TableUpdate(0, 0, tuple(stream.blocks[: length // BLOCK + 1]))
        rows.append(stream.row(1)._replace(table_updates=(whole_table,)))
    driver.step(rows, copies=copies)
    for _ in range(14):
        driver.step([stream.row(1) for stream in streams])
    assert len({tuple(stream.output) for stream in streams}) == 3
    for index, stream in enumerate(streams):
        alone = Driver(make_runner(llama))
        single = Stream(50, prompt, list(range(10)), sampling, index=index)
        alone.step([single.row(length)], starts=(single,))
        while len(single.output) < len(stream.output):
            alone.step([single.row(1)])
        assert single.output == stream.output


def test_a_sequence_whose_logits_are_not_finite_fails_alone(llama):
    """The broken sequence reads a block that holds NaN; its neighbour must not notice."""
    expected = generate_alone(llama, prompt_of(20, seed=1), 2)
    driver = Driver(make_runner(llama))
    good = Stream(0, prompt_of(20, seed=1), [0, 1])
    bad = Stream(1, prompt_of(20, seed=2), [2, 3])
    driver.step([good.row(20), bad.row(20)], starts=(good, bad))
    for tensor in driver.runner._store.group_tensors(0):
        tensor[2] = float("nan")
    result = driver.step([good.row(1), bad.row(1)])
    assert list(result.failed) == [1]
    assert good.output == expected


def test_rows_that_draw_nothing_still_fill_the_cache(llama):
    prompt = prompt_of(40, seed=11)
    driver = Driver(make_runner(llama))
    stream = Stream(0, prompt, scattered_blocks(0))
    assert driver.step([stream.row(30)], starts=(stream,)).tokens == ()
    driver.step([stream.row(10)])
    assert stream.output == generate_alone(llama, prompt, 1)


def test_the_longest_sequence_fills_its_table_to_the_end(llama):
    prompt = prompt_of(MAX_LEN - 1, seed=12)
    driver = Driver(make_runner(llama))
    stream = Stream(0, prompt, scattered_blocks(5))
    driver.step([stream.row(MAX_LEN - 1)], starts=(stream,))
    driver.step([stream.row(1)])
    assert stream.output == generate_alone(llama, prompt, 2)


def test_many_sequences_come_and_go(llama):
    driver = Driver(make_runner(llama, max_num_seqs=2))
    expected = generate_alone(llama, prompt_of(10, seed=13), 1)
    ended: tuple[int, ...] = ()
    for i in range(20):
        stream = Stream(i, prompt_of(10, seed=13), [i])
        driver.step([stream.row(10)], starts=(stream,), ended=ended)
        assert stream.output == expected
        ended = (i,)


def test_broken_plans_are_not_computed(llama):
    driver = Driver(make_runner(llama, max_num_seqs=1))
    stream = Stream(0, prompt_of(10), [0])
    with pytest.raises(InvariantViolation, match="no block"):
        driver.step([replace_row(stream.row(10), table_updates=())], starts=(stream,))
    with pytest.raises(InvariantViolation, match="known already"):
        driver.step([stream.row(1)], starts=(stream,))
    with pytest.raises(InvariantViolation, match="no block table"):
        driver.step([stream.row(1)], ended=(7,))
    with pytest.raises(InvariantViolation, match="no rows"):
        driver.step([])


def replace_row(row: StepRow, **changes) -> StepRow:
    return row._replace(**changes)


def test_the_runner_needs_to_know_the_longest_sequence(llama):
    from kvasir.engine.config import EngineConfig
    from kvasir.engine.runner import ModelRunner

    runner = make_runner(llama)
    with pytest.raises(ValueError, match="max_model_len"):
        ModelRunner(runner._decoder, runner._store, replace(EngineConfig(), max_model_len=None))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("weight_dtype", [WeightDtype.INT8, WeightDtype.FP32])
def test_tokens_taken_without_logits_are_those_taken_from_them(llama, kernels, weight_dtype):
    """Half of the sequences want log-probabilities, which need the logits; the others need only the best token."""
    options = {"kernels": kernels, "weight_dtype": weight_dtype}
    wanting = replace(GREEDY, logprobs=0)
    prompts = [prompt_of(9 + 3 * i, seed=i) for i in range(4)]
    alone = [
        [generate_alone(llama, prompt, 6, sampling, **options) for prompt in prompts] for sampling in (GREEDY, wanting)
    ]
    assert alone[0] == alone[1]

    driver = Driver(make_runner(llama, **options))
    streams = [
        Stream(i, prompt, list(range(10 * i, 10 * i + 4)), wanting if i % 2 else GREEDY)
        for i, prompt in enumerate(prompts)
    ]
    driver.step([stream.row(len(stream.tokens)) for stream in streams], starts=tuple(streams))
    for _ in range(5):
        result = driver.step([stream.row(1) for stream in streams])
        assert [token.logprobs is not None for token in result.tokens] == [False, True, False, True]
    assert [stream.output for stream in streams] == alone[0]
