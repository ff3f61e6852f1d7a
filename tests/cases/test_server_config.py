"""Real fault of another server, asked of ours: a flag that silently turns off another."""

import re
from pathlib import Path

import httpx
import pytest

from kvasir.engine.flags import FLAGS
from live_server import LiveServer, engine_settings, spawn_server


def test_Q4_the_effective_configuration_is_printed_and_exported(live_server: LiveServer) -> None:
    """The same values, by flag name, in the ready message, on /version and as a metric; nothing left to 'auto'."""
    printed = live_server.ready["effective_config"]
    assert {flag.name for flag in FLAGS} <= printed.keys()
    assert printed["enable_prefix_caching"] == "on" and printed["kv_cache_dtype"] == "bf16"
    assert "auto" not in printed.values()
    assert printed["port"] == str(live_server.port)
    assert httpx.get(live_server.url + "/version").json()["effective_config"] == printed
    line = re.search(r"^kvasir:effective_config_info\{(.*)\} 1\.0$", httpx.get(live_server.url + "/metrics").text, re.M)
    assert line is not None
    assert printed.items() <= dict(re.findall(r'(\w+)="([^"]*)"', line[1])).items()


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8", "int4", "k=int8,v=int4"])
def test_Q4_every_kv_format_keeps_the_prefix_cache(live_server: LiveServer, demo_model: Path, dtype: str) -> None:
    """A format and prefix caching both work: hits are found with each (bf16 is the shared server's)."""
    from kvasir.core.request import Request
    from kvasir.core.sampling import SamplingParams
    from kvasir.engine.config import CacheConfig, EngineConfig, MemoryConfig, WeightDtype
    from kvasir.engine.engine import Engine
    from kvasir.kv.format_pair import parse_pair

    config = EngineConfig(
        weight_dtype=WeightDtype.FP32,
        max_model_len=128,
        threads=1,
        cache=CacheConfig(kv_cache_dtype=parse_pair(dtype), memory=MemoryConfig(kv_cache_memory_bytes=32 << 20)),
    )
    engine = Engine.from_config(config)
    assert engine.config.cache.enable_prefix_caching and engine.config.cache.kv_cache_dtype == parse_pair(dtype)
    for number in range(2):
        sampling = SamplingParams(max_tokens=1, temperature=0)
        engine.add_request(Request(request_id=str(number), prompt_token_ids=tuple(range(50)), sampling=sampling))
        while engine.has_work:
            engine.step()
    assert engine.stats().num_prefix_hits == 48
    engine.close()


def test_Q4_flags_that_cannot_work_together_are_refused_in_one_sentence(demo_model: Path) -> None:
    server = spawn_server(engine_settings(num_blocks=36, cache={"allocation": "contiguous"}))
    assert server.process.wait(60) == 1
    message = server.log_text
    assert message.startswith("invalid_config: ") and message.count("\n") == 1
    assert "--kv-allocation contiguous" in message and "--enable-prefix-caching" in message
