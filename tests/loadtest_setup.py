"""Load tests in this process against a server on this machine, in one call; and records made by hand."""

import asyncio
from typing import Any

from kvasir.loadtest.load_test import LoadTest, RunData, opened
from kvasir.loadtest.prompt_maker import PromptKind
from kvasir.loadtest.record import CountedBy, Place, Record
from kvasir.loadtest.result import BenchResult, result_json
from kvasir.loadtest.settings import (
    EndpointSettings,
    LoadSettings,
    LoadTestSettings,
    MeasureSettings,
    WorkloadKind,
    WorkloadSettings,
)
from kvasir.loadtest.target import Api, BodyOptions, Target
from kvasir.workload.arrivals import ArrivalProcess
from kvasir.workload.latency import Slo
from kvasir.workload.lengths import LengthRange

AT_ONCE = ArrivalProcess(rate=float("inf"))


def fixed(length: int) -> LengthRange:
    return LengthRange(low=length, high=length)


def make_settings(url: str, script: dict[str, Any] | None = None, **given: Any) -> LoadTestSettings:
    """``given``: fields of the settings' parts, ``api``, ``slo`` and ``extra``.  By default 8 prompts of 16 token ids,
    8 tokens back, at once, no warm-up."""
    kind = given.pop("kind", WorkloadKind.RANDOM)
    api = given.pop("api", Api.CHAT if kind is WorkloadKind.CHAT else Api.COMPLETIONS)
    extra = given.pop("extra", {}) | ({} if script is None else {"script": script})
    body = BodyOptions(extra=extra, ignores_eos=given.pop("ignores_eos", True))
    words = api is Api.CHAT or kind is WorkloadKind.FILE
    workload = {
        "kind": kind,
        "prompt_tokens": fixed(16),
        "output_tokens": None if kind.needs_file else fixed(8),
        "prompts": PromptKind.WORDS if words else PromptKind.TOKENS,
    }
    load: dict[str, Any] = {"arrivals": AT_ONCE, "num_warmups": 0, "num_sessions": 8}
    measure: dict[str, Any] = {"slo": given.pop("slo", Slo()), "metrics_interval_s": None}
    endpoint: dict[str, Any] = {"timeout_s": 60.0}
    for name, value in given.items():
        part = next(
            part
            for part, settings in (
                (workload, WorkloadSettings),
                (load, LoadSettings),
                (measure, MeasureSettings),
                (endpoint, EndpointSettings),
            )
            if name in settings.__dataclass_fields__
        )
        part[name] = value
    return LoadTestSettings(
        endpoint=EndpointSettings(target=Target.from_url(url, api), body=body, **endpoint),
        workload=WorkloadSettings(**workload),
        load=LoadSettings(**load),
        measure=MeasureSettings(**measure),
    )


def record(sent_s: float, chunks: list[float], end_s: float | None = None, **given: Any) -> Record:
    """A request of 10 prompt tokens that was answered, a token a chunk; ``given``: other fields."""
    fields: dict[str, Any] = {
        "place": Place(session=0, turn=1, planned_s=sent_s),
        "connect_s": 0.0,
        "num_prompt_tokens": 10,
        "prompt_counted_by": CountedBy.USAGE,
        "num_output_tokens": len(chunks),
        "output_counted_by": CountedBy.USAGE,
        "num_cached_tokens": None,
        "text": "",
        "finish_reason": "length",
        "failure": None,
    } | given
    return Record(sent_s=sent_s, chunk_times_s=tuple(chunks), end_s=chunks[-1] if end_s is None else end_s, **fields)


async def play(settings: LoadTestSettings) -> tuple[BenchResult, LoadTest]:
    async with opened(settings) as test:
        runs: list[RunData] = [await test.run(point) for point in test.points()]
        return BenchResult.of(runs, settings), test


def run_load(settings: LoadTestSettings) -> tuple[BenchResult, dict[str, Any]]:
    """What was found, and as the result file has it."""
    result, test = asyncio.run(play(settings))
    return result, result_json(result, test)
