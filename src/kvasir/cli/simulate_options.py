"""The options of ``kvasir simulate``: traffic, deployment, question, probe; spelled as in ``bench`` and ``plan``."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from kvasir.cli.options import OptionGroup, option
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.routing import Routing
from kvasir.workload.traces.read import TraceFormat

Given = Mapping[str, Any]

_TRAFFIC = (
    option(
        "trace",
        str,
        "--trace",
        metavar="FILE",
        help="Recorded traffic: Mooncake, Azure, WEKA, Bailian, BurstGPT, "
        "our request log, OpenAI JSON lines, or a table of lengths; the format is seen from the file.",
    ),
    option("trace_format", TraceFormat, "--trace-format", help="The format, if it cannot be seen."),
    option("hash_block_size", int, "--hash-block-size", help="Tokens of a block id in Mooncake files. [default: 512]"),
    option("session_rate", float, "--session-rate", help="WEKA sessions that start a second. [default: 0.05]"),
    option("num_prompts", int, "--num-prompts", help="Only the first so many requests."),
    option("max_context", int, "--max-context", help="Leave out longer requests. [default: none, they are refused]"),
    option("trace_speed", float, "--trace-speed", help="2 plays the trace in half the time. [default: 1]"),
    option(
        "request_rate",
        float,
        "--request-rate",
        help="Requests a second instead of the recorded times; inf: all at once.",
    ),
    option("burstiness", float, "--burstiness", help="Gamma shape of the gaps at a request rate: 1 is Poisson."),
    option("max_concurrency", int, "--max-concurrency", help="Closed loop of so many clients, sessions in order."),
    option("seed", int, "--seed", help="Of arrivals. [default: 0]"),
    option("emit", str, "--emit", metavar="FILE", help="Write the traffic as Mooncake JSON lines."),
)
_DEPLOYMENT = (
    option("model", str, "--model", help="As for plan: a folder, config.json, .gguf, built-in name or owner/name id."),
    option("hardware", str, "--hardware", help="A device by name (see plan --list-hardware)."),
    option(
        "costs",
        str,
        "--costs",
        metavar="FILE",
        help="Step costs written by --calibrate, instead of a device. "
        "[default: the last calibration, when no hardware is named]",
    ),
    option("tp", int, "--tp", help="Devices that share every layer. [default: 1]"),
    option("weight_dtype", str, "--weight-dtype", help="bf16, fp8, int8, int4 ... [default: the checkpoint's]"),
    option(
        "kv_cache_dtype", str, "--kv-cache-dtype", help="bf16, fp8, int8 ...; apart as 'k=int8,v=int4'. [default: bf16]"
    ),
    option(
        "kv_retention",
        str,
        "--kv-retention",
        metavar="RULE",
        help="full, or window:sinks=4,window=1024, for layers without a window of their own. [default: full]",
    ),
    option("kv_blocks", int, "--kv-blocks", help="Blocks of one instance. [default: what the device holds]"),
    option("kv_cache_memory", str, "--kv-cache-memory", metavar="SIZE", help="KV pool of each device, like 40GiB."),
    option("memory_utilization", float, "--memory-utilization", help="Share of a device's memory. [default: 0.9]"),
    option("block_size", int, "--block-size", help="Tokens of a block. [default: the trace's own, else 16]"),
    option("max_model_len", int, "--max-model-len", help="Longest prompt and output. [default: the model's context]"),
    option("max_num_seqs", int, "--max-num-seqs", help="Sequences at once on an instance. [default: 256]"),
    option("max_num_batched_tokens", int, "--max-num-batched-tokens", help="Tokens of a step. [default: 8192]"),
    option(
        "long_prefill_token_threshold",
        int,
        "--long-prefill-token-threshold",
        help="The most tokens of a step one prompt takes while there are several. [default: 0, the fair share]",
    ),
    option("max_waiting", int, "--max-waiting", help="Requests that may wait before more are refused. [default: 4096]"),
    option("policy", EvictionPolicy, "--policy", help="Which cached block goes first. [default: lru, as the engine]"),
    option(
        "kv_eviction",
        str,
        "--kv-eviction",
        metavar="RULE",
        help="Cut prompts once they are computed, like keydiff:keep=0.5, as the engine does. [default: off]",
    ),
    option("prefix_caching", bool, "--enable-prefix-caching/--no-enable-prefix-caching", help="[default: on]"),
    option("instances", int, "--instances", help="Engines behind a router. [default: 1]"),
    option("routing", Routing, "--routing", help="How requests find an instance. [default: least-loaded]"),
    option("long_instances", int, "--long-instances", help="Of the instances, so many take long prompts only."),
    option("length_cut", int, "--length-cut", help="Prompts of more tokens are long."),
    option("price", float, "--price", help="Dollars per hour of a device. [default: the device's, where known]"),
)
_QUESTION = (
    option("goodput", list[str], "--goodput", metavar="NAME:MS", help="Objectives, like ttft:500 tpot:50 e2el:9000."),
    inspect.Parameter(
        "more_objectives",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        # So that ``--goodput ttft:500 tpot:50`` reads as it does elsewhere.
        annotation=Annotated[list[str] | None, typer.Argument(metavar="[NAME:MS]", hidden=True)],
    ),
    option("capacity", bool, "--capacity", default=False, help="Find the largest request rate that meets --goodput."),
    option("attainment", float, "--attainment", help="Share of requests that must be good. [default: 0.95]"),
    option(
        "sweep",
        list[str],
        "--sweep",
        metavar="NAME=V,V,..",
        help="Every combination of kv-blocks, policy, "
        "max-num-batched-tokens, max-num-seqs, instances, routing, long-instances, length-cut, request-rate, "
        "trace-speed, max-concurrency; repeat for several.",
    ),
    option(
        "hit_rates",
        str,
        "--hit-rates",
        metavar="SIZES",
        help="Only hit rates, without time: cache sizes in blocks of the trace (954,1909,unlimited), or 'auto'.",
    ),
    option("from_share", float, "--from-share", help="--hit-rates: count requests after this share. [default: 0.5]"),
)
_CALIBRATION = (
    option(
        "calibrate",
        bool,
        "--calibrate",
        default=False,
        help="Fit step costs: probe the local engine (--model), or a live server (--base-url), for two minutes.",
    ),
    option("base_url", str, "--base-url", metavar="URL", help="--calibrate: the server to probe."),
    option("api_key", str, "--api-key", envvar="KVASIR_API_KEY", help="--calibrate: key to send."),
    option("probe_s", float, "--probe-seconds", help="--calibrate: length of the probe. [default: 120]"),
    option("threads", int, "--threads", help="--calibrate: threads of the local engine. [default: all]"),
)


def _as_given(given: Given) -> Given:
    return given


TRAFFIC = OptionGroup(parameters=_TRAFFIC, build=_as_given)
DEPLOYMENT = OptionGroup(parameters=_DEPLOYMENT, build=_as_given)
QUESTION = OptionGroup(parameters=_QUESTION, build=_as_given)
CALIBRATION = OptionGroup(parameters=_CALIBRATION, build=_as_given)
