"""Prefix caching must not change answers: the case where a cached second run differed from the first."""

import random
import string

from kvasir.core.sampling import SamplingParams
from kvasir.engine.llm import LLM


def test_P1_cached_and_uncached_runs_give_the_same_tokens(demo_model):
    random.seed(0)
    alphabet = string.ascii_lowercase + string.digits
    prompts = ["".join(random.choices(alphabet, k=512)) for _ in range(16)]
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    settings = {"kv_cache_memory": "384MiB", "max_model_len": 1024, "threads": 1}

    def tokens(llm: LLM) -> list[tuple[int, ...]]:
        return [output.outputs[0].token_ids for output in llm.generate(prompts, greedy)]

    with LLM(str(demo_model), enable_prefix_caching=False, **settings) as plain:
        expected = tokens(plain)
        assert plain.engine.stats().num_prefix_hits == 0
    with LLM(str(demo_model), **settings) as caching:
        assert tokens(caching) == expected
        assert tokens(caching) == expected
        stats = caching.engine.stats()
        assert stats.num_prefix_hits > stats.num_prefix_queries // 3, "the second run came from the cache"
