"""From the options of ``kvasir bench serve`` to the settings of a load test; what means nothing is refused by name."""

import json
from typing import Any

from kvasir.cli.bench_options import DEFAULT_TURNS, DEFAULT_URL, Given, spelling
from kvasir.core.errors import ConfigError
from kvasir.loadtest.prompt_maker import PromptKind
from kvasir.loadtest.settings import (
    EndpointSettings,
    LoadSettings,
    LoadTestSettings,
    MeasureSettings,
    WorkloadKind,
    WorkloadSettings,
)
from kvasir.loadtest.sweep import Sweep, SweptSetting
from kvasir.loadtest.target import Api, BodyOptions, Target
from kvasir.workload.arrivals import ArrivalProcess, RampShape
from kvasir.workload.latency import PERCENTILES, Slo
from kvasir.workload.lengths import LengthRange

_APIS = {
    "completions": Api.COMPLETIONS,
    "chat": Api.CHAT,
    # What ``vllm bench serve --endpoint`` takes.
    "/v1/completions": Api.COMPLETIONS,
    "/v1/chat/completions": Api.CHAT,
}
# Options that mean something for some workloads only.
_ONLY_FOR = {
    "input_tokens": {WorkloadKind.RANDOM, WorkloadKind.SHARED_PREFIX, WorkloadKind.CHAT},
    "prefix_tokens": {WorkloadKind.SHARED_PREFIX},
    "num_prefixes": {WorkloadKind.SHARED_PREFIX},
    "turns": {WorkloadKind.CHAT, WorkloadKind.FILE},
    "system_tokens": {WorkloadKind.CHAT},
    "think_s": {WorkloadKind.CHAT},
    "output_tokens": {WorkloadKind.RANDOM, WorkloadKind.SHARED_PREFIX, WorkloadKind.CHAT, WorkloadKind.FILE},
    "file": {WorkloadKind.FILE, WorkloadKind.TRACE},
    "prompts": {WorkloadKind.RANDOM, WorkloadKind.SHARED_PREFIX, WorkloadKind.TRACE},
    "trace_format": {WorkloadKind.TRACE},
    "hash_block_size": {WorkloadKind.TRACE},
    "trace_speed": {WorkloadKind.TRACE},
    "follow_sessions": {WorkloadKind.TRACE},
}


def make_settings(
    endpoint: Given, workload: Given, load: Given, measure: Given
) -> tuple[LoadTestSettings, Sweep | None]:
    """Raises ``ConfigError`` for values and combinations that mean nothing."""
    kind = workload["workload"] or WorkloadKind.RANDOM
    _check_workload_options(kind, workload)
    api = _api(endpoint["endpoint"], kind)
    sweep = None if load["sweep"] is None else Sweep.parse(load["sweep"])
    settings = LoadTestSettings(
        endpoint=_endpoint(endpoint, api, kind),
        workload=_workload(workload, api, kind),
        load=_load(load, kind, sweep),
        measure=_measure(measure),
    )
    return settings, sweep


def _check_workload_options(kind: WorkloadKind, given: Given) -> None:
    for name, kinds in _ONLY_FOR.items():
        if given[name] is not None and kind not in kinds:
            where = " and ".join(sorted(one.value for one in kinds))
            raise ConfigError(
                f"{spelling(name)} has no part in the {kind.value} workload; it is for {where} (see --workload)."
            )


def _api(word: str | None, kind: WorkloadKind) -> Api:
    if word is None:
        return Api.CHAT if kind in (WorkloadKind.CHAT, WorkloadKind.FILE) else Api.COMPLETIONS
    api = _APIS.get(word)
    if api is None:
        raise ConfigError(f"--endpoint {word} is not known; choose completions or chat.")
    return api


def _endpoint(given: Given, api: Api, kind: WorkloadKind) -> EndpointSettings:
    ignores_eos = given["ignore_eos"]
    return EndpointSettings(
        target=Target.from_url(given["base_url"] or DEFAULT_URL, api, given["api_key"], given["header"] or ()),
        model=given["model"],
        body=BodyOptions(
            temperature=0.0 if given["temperature"] is None else given["temperature"],
            ignores_eos=kind is not WorkloadKind.FILE if ignores_eos is None else ignores_eos,
            extra=_extra_body(given["extra_body"]),
        ),
        **_present(timeout_s=given["timeout_s"], wait_s=given["wait_s"]),
    )


def _extra_body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra-body is not JSON ({error}).") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"--extra-body must be a JSON object, got {text[:60]}.")
    return fields


def _workload(given: Given, api: Api, kind: WorkloadKind) -> WorkloadSettings:
    takes_tokens = api is Api.COMPLETIONS and kind is not WorkloadKind.FILE
    turns = given["turns"] or (DEFAULT_TURNS if kind is WorkloadKind.CHAT else 1)
    return WorkloadSettings(
        kind=kind,
        output_tokens=None if given["output_tokens"] is None else LengthRange.parse(given["output_tokens"]),
        prompts=given["prompts"] or (PromptKind.TOKENS if takes_tokens else PromptKind.WORDS),
        num_turns=turns,
        path=given["file"],
        trace_format=given["trace_format"],
        hash_block_size=given["hash_block_size"],
        max_context=given["max_context"],
        **_present(
            prompt_tokens=None if given["input_tokens"] is None else LengthRange.parse(given["input_tokens"]),
            prefix_tokens=given["prefix_tokens"],
            num_prefixes=given["num_prefixes"],
            system_tokens=given["system_tokens"],
            think_s=given["think_s"],
            speed=given["trace_speed"],
            follows_sessions=given["follow_sessions"],
            token_ids=None if given["token_ids"] is None else _id_range(given["token_ids"]),
        ),
    )


def _id_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        return int(low), int(high)
    except ValueError:
        raise ConfigError(f"--token-ids {text} is no range; write one like 1000:20000.") from None


def _load(given: Given, kind: WorkloadKind, sweep: Sweep | None) -> LoadSettings:
    _check_pace(given, sweep)
    arrivals = _arrivals(given)
    return LoadSettings(
        arrivals=arrivals or ArrivalProcess(rate=float("inf"), seed=given["seed"] or 0),
        uses_recorded_times=kind is WorkloadKind.TRACE and arrivals is None and sweep is None,
        max_concurrency=given["max_concurrency"],
        num_sessions=given["num_prompts"],
        max_duration_s=given["duration_s"],
        **_present(
            num_warmups=given["num_warmups"],
            num_runs=given["repeat"],
            seed=given["seed"],
            resets_prefix_cache=given["reset_cache"],
        ),
    )


def _check_pace(given: Given, sweep: Sweep | None) -> None:
    is_ramp = given["ramp_shape"] is not None
    has_rate = given["request_rate"] is not None and given["request_rate"] != float("inf")
    has_ramp_ends = given["ramp_start"] is not None and given["ramp_end"] is not None
    if is_ramp != has_ramp_ends or (given["ramp_start"] is None) != (given["ramp_end"] is None):
        raise ConfigError("A ramp needs --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps together.")
    if is_ramp and given["request_rate"] is not None:
        raise ConfigError("--request-rate and a ramp both say how fast requests come; give one of them.")
    is_rate_sweep = sweep is not None and sweep.setting is SweptSetting.RATE
    if given["burstiness"] is not None and not (has_rate or is_ramp or is_rate_sweep):
        raise ConfigError("--burstiness shapes the gaps of a rate, and none is given; add --request-rate.")
    if sweep is not None and (given["request_rate"] is not None or is_ramp):
        raise ConfigError(
            f"--sweep {sweep.setting.value} decides when requests come; leave out --request-rate and ramps."
        )
    if sweep is not None and sweep.setting is SweptSetting.CONCURRENCY and given["max_concurrency"] is not None:
        raise ConfigError("--sweep concurrency decides how many are in flight; leave out --max-concurrency.")


def _arrivals(given: Given) -> ArrivalProcess | None:
    """None when nothing is said about when requests come."""
    shape, burstiness = given["ramp_shape"], given["burstiness"]
    rate = given["request_rate"] if shape is None else given["ramp_start"]
    if rate is None and burstiness is None:
        return None
    return ArrivalProcess(
        rate=float("inf") if rate is None else rate,
        burstiness=1.0 if burstiness is None else burstiness,
        end_rate=given["ramp_end"],
        ramp=shape or RampShape.LINEAR,
        seed=given["seed"] or 0,
    )


def _measure(given: Given) -> MeasureSettings:
    interval_s = given["metrics_interval_s"]
    return MeasureSettings(
        slo=_objectives(given),
        percentiles=PERCENTILES if given["percentiles"] is None else _percentiles(given["percentiles"]),
        metrics_interval_s=1.0 if interval_s is None else interval_s or None,
    )


def _objectives(given: Given) -> Slo:
    words = given["goodput"] or ()
    more = given["more_objectives"] or ()
    if more and not words:
        raise ConfigError(f"{more[0]!r} belongs to no option.")
    return Slo.parse((*words, *more))


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        return tuple(sorted({float(word) for word in text.replace(",", " ").split()}))
    except ValueError:
        raise ConfigError(f"--metric-percentiles {text} is no list of numbers; write one like 50,90,99.") from None


def _present(**values: Any) -> dict[str, Any]:
    """Those that were given, so that the settings' own defaults hold for the others."""
    return {name: value for name, value in values.items() if value is not None}
