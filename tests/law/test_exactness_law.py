"""Law 1 on the embedded model with int8 weights: the same prompt gives the same tokens whatever happens around it."""

from dataclasses import replace

import pytest

from kvasir.core.events import RequestFinishedEvent, TokensEvent
from kvasir.core.progress import no_progress
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.engine.assembly import LoadedModel, build, load_model, make_layout
from kvasir.engine.config import CacheConfig, EngineConfig, WeightDtype
from kvasir.engine.engine import Engine
from kvasir.engine.flags import make_engine_config
from kvasir.engine.memory import available_memory
from kvasir.kv.format_pair import parse_pair
from kvasir.models.config import load_config
from kvasir.models.resolve import resolve_model
from kvasir.text.tokenizer import Tokenizer

NUM_OUTPUT = 40
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT, ignore_eos=True)
TEXT = (
    "The keeper of the lighthouse wrote down the weather every morning, and the ships that passed, and what the gulls "
    "had stolen from the kitchen. In the spring of the ninth year he noticed that the entries repeated themselves. "
)


class Bench:
    """Engines around one loaded model, with a KV cache in ``kv_cache_dtype``."""

    def __init__(self, loaded: LoadedModel, kv_cache_dtype: str) -> None:
        self.loaded = loaded
        self.kv_cache_dtype = kv_cache_dtype
        tokenizer = Tokenizer.from_folder(loaded.folder.path)
        self.prompt = tuple(tokenizer.encode(TEXT * 4))
        self.others = [tuple(tokenizer.encode(f"{i} {TEXT[i:]}" * (1 + i % 3))) for i in range(15)]

    def pool_bytes(self, num_blocks: int) -> int:
        cache = CacheConfig(kv_cache_dtype=parse_pair(self.kv_cache_dtype))
        return make_layout(self.loaded.model_config, cache).groups[0].pool_bytes(num_blocks)

    def engine(self, **flags) -> Engine:
        defaults = {"kv_cache_memory": "256MiB", "max_model_len": 1024, "kv_cache_dtype": self.kv_cache_dtype}
        config: EngineConfig = make_engine_config(**(defaults | flags))
        return Engine(build(self.loaded, config, available_memory()))


@pytest.fixture(scope="module", params=["int8", "int4", "bf16"])
def bench(demo_model, request) -> Bench:
    folder = resolve_model("demo")
    loaded = load_model(folder, load_config(folder.path), WeightDtype.INT8, no_progress)
    return Bench(loaded, request.param)


def run(engine: Engine, *requests: Request) -> dict[tuple[str, int], list[int]]:
    for request in requests:
        engine.add_request(request)
    tokens: dict[tuple[str, int], list[int]] = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokensEvent):
                tokens.setdefault((event.request_id, event.index), []).extend(event.token_ids)
            else:
                assert isinstance(event, RequestFinishedEvent) and event.error is None
    engine.audit()
    return tokens


def ask(prompt, request_id="r", sampling=GREEDY) -> Request:
    return Request(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)


@pytest.fixture(scope="module")
def alone(bench) -> list[int]:
    return run(bench.engine(), ask(bench.prompt))["r", 0]


def test_alone_is_what_it_is_twice(bench, alone):
    assert len(alone) == NUM_OUTPUT
    assert run(bench.engine(), ask(bench.prompt))["r", 0] == alone


def test_in_a_batch_of_sixteen(bench, alone):
    others = [ask(prompt, f"other{i}") for i, prompt in enumerate(bench.others)]
    assert run(bench.engine(), *others[:7], ask(bench.prompt), *others[7:])["r", 0] == alone


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_whatever_the_chunk_size(bench, alone, chunk):
    assert run(bench.engine(max_num_batched_tokens=chunk, max_num_seqs=1), ask(bench.prompt))["r", 0] == alone


@pytest.mark.parametrize("block_size", [32, 64])
def test_whatever_the_block_size(bench, alone, block_size):
    assert run(bench.engine(block_size=block_size), ask(bench.prompt))["r", 0] == alone


def test_whatever_the_number_of_threads(bench, alone):
    assert run(bench.engine(threads=1), ask(bench.prompt))["r", 0] == alone


def test_cold_and_after_a_prefix_hit(bench, alone):
    engine = bench.engine()
    assert run(engine, ask(bench.prompt, "cold"))["cold", 0] == alone
    assert run(engine, ask(bench.prompt, "hit"))["hit", 0] == alone
    assert engine.stats().num_prefix_hits >= len(bench.prompt) // 16 * 16 - 16


def test_with_prefix_caching_off(bench, alone):
    engine = bench.engine(enable_prefix_caching=False)
    assert run(engine, ask(bench.prompt, "a"), ask(bench.prompt, "b")) == {("a", 0): alone, ("b", 0): alone}
    assert engine.stats().num_prefix_hits == 0


def test_contiguous_and_static(bench, alone):
    engine = bench.engine(kv_allocation="contiguous", scheduling="static", enable_prefix_caching=False)
    assert run(engine, ask(bench.prompt), ask(bench.others[0], "other"))["r", 0] == alone


def test_after_preemption(bench, alone):
    """Room for both prompts, but not for what they grow to: the later one is preempted and computed again."""
    num_blocks = 2 * -(-len(bench.prompt) // 16) + 2
    engine = bench.engine(kv_cache_memory=bench.pool_bytes(num_blocks), max_model_len=256)
    earlier = ask((11, *bench.prompt[1:]), "earlier")
    tokens = run(engine, earlier, ask(bench.prompt))
    assert engine.stats().num_preemptions > 0
    assert tokens["r", 0] == alone


def test_with_parallel_samples(bench, alone):
    tokens = run(bench.engine(), ask(bench.prompt, sampling=replace(GREEDY, n=3)))
    assert [tokens["r", index] for index in range(3)] == [alone] * 3


def test_a_seeded_request_among_unseeded_neighbours(bench):
    seeded = replace(GREEDY, temperature=0.8, top_p=0.95, seed=42)
    unseeded = replace(GREEDY, temperature=0.8)
    expected = run(bench.engine(), ask(bench.prompt, sampling=seeded))["r", 0]
    others = [ask(prompt, f"other{i}", unseeded) for i, prompt in enumerate(bench.others)]
    for seed in (1, 2):
        assert run(bench.engine(seed=seed), *others, ask(bench.prompt, sampling=seeded))["r", 0] == expected
    assert run(bench.engine(), ask(bench.prompt, sampling=replace(seeded, seed=43)))["r", 0] != expected


def test_parallel_seeded_samples_differ_from_each_other_and_repeat(bench):
    sampling = replace(GREEDY, temperature=0.9, seed=7, n=3)
    first = run(bench.engine(), ask(bench.prompt, sampling=sampling))
    again = run(bench.engine(max_num_batched_tokens=64), ask(bench.prompt, sampling=sampling))
    assert first == again
    assert len({tuple(tokens) for tokens in first.values()}) == 3


def test_abort_in_queue_prefill_and_decode_gives_everything_back(bench, alone):
    engine = bench.engine(max_num_batched_tokens=64, max_num_seqs=2)
    for i in range(4):
        engine.add_request(ask((*bench.prompt[:-1], i), f"r{i}"))
    engine.step()
    engine.abort("r0")  # in prefill
    engine.abort("r3")  # in the queue
    while not any(isinstance(event, TokensEvent) and event.token_ids for event in engine.step()):
        pass
    engine.abort("r1")
    engine.abort("r2")
    ended = [event for event in engine.step() if isinstance(event, RequestFinishedEvent)]
    assert {event.request_id for event in ended} >= {"r1", "r2"}
    assert not engine.has_work
    assert all(group.num_used == 0 for group in engine.stats().groups)
    assert run(engine, ask(bench.prompt))["r", 0] == alone
