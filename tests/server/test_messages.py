"""Everything that crosses between the processes arrives as it was sent."""

import msgspec
import pytest

from kvasir.core.events import RequestFinishedEvent, RequestRefusedEvent, TokensEvent
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.core.sequence import FinishReason
from kvasir.core.step import TokenLogprobs
from kvasir.engine.config import CacheConfig, EngineConfig, KernelChoice, MemoryConfig, WeightDtype
from kvasir.engine.stats import EngineStats
from kvasir.kv.format_pair import FormatPair
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.usage import GroupUsage
from kvasir.scheduling.config import QueuePolicy, SchedulerConfig
from kvasir.server import messages

STATS = EngineStats(
    num_running=1,
    num_waiting=2,
    groups=(GroupUsage(num_blocks=9, num_used=4, num_cached=3, num_free=2),),
    num_steps=3,
    num_preemptions=4,
    num_prefix_queries=5,
    num_prefix_hits=6,
    num_prompt_tokens=7,
    num_generated_tokens=8,
    num_computed_tokens=9,
    num_admitted=10,
    num_aborted=11,
    step_s_total=1.5,
)
CONFIG = EngineConfig(
    model="x",
    weight_dtype=WeightDtype.BF16,
    max_model_len=77,
    cache=CacheConfig(
        kv_cache_dtype=FormatPair(k=KVDtype.INT8, v=KVDtype.INT4), memory=MemoryConfig(kv_cache_memory_bytes=1 << 40)
    ),
    scheduler=SchedulerConfig(policy=QueuePolicy.PRIORITY),
    kernels=KernelChoice.REFERENCE,
    threads=3,
)
REQUEST = Request(
    request_id="é",
    prompt_token_ids=(1, 2, 3),
    sampling=SamplingParams(
        n=2, temperature=0.0, seed=-(2**63), logit_bias=((1, -100.0),), stop=("日",), stop_token_ids=(7,), logprobs=20
    ),
    eos_token_ids=(5,),
    arrival_s=1.25,
    priority=-4,
    cache_salt="s",
    tenant="t",
)
TOKENS = TokensEvent(
    request_id="a",
    index=1,
    token_ids=(5, 6),
    logprobs=(TokenLogprobs(-0.5, 1, ((5, -0.5), (9, -2.0))), TokenLogprobs(-1.0, 3)),
    finish_reason=FinishReason.STOP,
    stop_token_id=6,
)
FINISHED = RequestFinishedEvent(
    request_id="a",
    finish_reason=FinishReason.ERROR,
    num_prompt_tokens=1,
    num_cached_tokens=0,
    num_output_tokens=2,
    ttft_s=None,
    error="NaN",
)
REFUSED = RequestRefusedEvent(request_id="a", code="c", message="m", http_status=400, param="p")


@pytest.mark.parametrize(
    "message",
    [
        messages.Start(config=CONFIG),
        messages.Submit(request=REQUEST),
        messages.Abort(request_id="a"),
        messages.StopSequence(request_id="a", index=3),
        messages.ResetPrefixCache(call_id=1),
        messages.Shutdown(),
    ],
)
def test_to_the_engine(message: messages.ToEngine) -> None:
    assert messages.decode_to_engine(messages.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        messages.LoadProgress(stage="load weights", fraction=0.5),
        messages.Ready(
            model_name="demo",
            model_path="/x",
            model_digest="a",
            layout_digest="b",
            max_model_len=5,
            vocab_size=6,
            policy=QueuePolicy.FCFS,
            effective_config={"a": "b"},
            capacity=messages.Capacity(block_size=16, num_blocks=(1, 2), num_tokens=3, num_sequences=0.5, num_bytes=4),
        ),
        messages.StartFailed(code="invalid_config", message="no"),
        messages.Admitted(request_id="a"),
        messages.StepReport(stats=STATS, step_s=0.1, tokens=(TOKENS,), finished=(FINISHED,), refused=(REFUSED,)),
        messages.StepReport(stats=STATS),
        messages.PrefixCacheReset(call_id=1),
        messages.EngineFailed(reason="r"),
    ],
)
def test_from_the_engine(message: messages.FromEngine) -> None:
    assert messages.decode_from_engine(messages.encode(message)) == message


def test_the_two_directions_do_not_mix() -> None:
    with pytest.raises(msgspec.ValidationError):
        messages.decode_to_engine(messages.encode(messages.Admitted(request_id="a")))
    with pytest.raises(msgspec.ValidationError):
        messages.decode_from_engine(messages.encode(messages.Shutdown()))
