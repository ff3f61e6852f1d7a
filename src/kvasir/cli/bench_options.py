"""The options of ``kvasir bench serve``, with the spellings of ``vllm bench serve`` where it has the idea."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kvasir.cli.options import OptionGroup, option
from kvasir.loadtest.prompt_maker import PromptKind
from kvasir.loadtest.settings import WorkloadKind
from kvasir.workload.arrivals import RampShape
from kvasir.workload.traces.read import TraceFormat

Given = Mapping[str, Any]

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TURNS = 5

_ENDPOINT = (
    option("base_url", str, "--base-url", metavar="URL", help=f"The server. [default: {DEFAULT_URL}]"),
    option(
        "endpoint",
        str,
        "--endpoint",
        metavar="[completions|chat]",
        help="/v1/completions or /v1/chat/completions. [default: chat for chats and files, else completions]",
    ),
    option("model", str, "--model", help="Model to ask for. [default: the first that the server lists]"),
    option("api_key", str, "--api-key", envvar="KVASIR_API_KEY", help="Key to send. [default: none]"),
    option("header", list[str], "--header", metavar="'NAME: VALUE'", help="Header to send; may be repeated."),
    option("timeout_s", float, "--timeout", help="Seconds a request may take. [default: 600]"),
    option("wait_s", float, "--wait", help="Seconds to wait for the server to be there. [default: 0]"),
    option("temperature", float, "--temperature", help="Sampling temperature. [default: 0]"),
    option(
        "ignore_eos",
        bool,
        "--ignore-eos/--no-ignore-eos",
        help="Answers get their full length (vLLM's extra field). [default: on, off for files]",
    ),
    option("extra_body", str, "--extra-body", metavar="JSON", help="Fields for every request body."),
)
_WORKLOAD = (
    option(
        "workload",
        WorkloadKind,
        "--workload",
        help="random: lone prompts; shared-prefix; chat: turns that grow; file: recorded texts; trace: recorded "
        "times and lengths. [default: random]",
    ),
    option(
        "input_tokens",
        str,
        "--input-tokens",
        metavar="N|LO:HI",
        help="Tokens of a prompt, or of what a chat's user says; a range is log-uniform. [default: 512]",
    ),
    option(
        "output_tokens",
        str,
        "--output-tokens",
        metavar="N|LO:HI",
        help="Answer tokens. [default: 128, else as recorded]",
    ),
    option(
        "prompts",
        PromptKind,
        "--prompts",
        help="Random token ids or words. [default: tokens where the route takes them]",
    ),
    option("prefix_tokens", int, "--prefix-tokens", help="shared-prefix: tokens of a prefix. [default: 1024]"),
    option("num_prefixes", int, "--num-prefixes", help="shared-prefix: how many prefixes. [default: 1]"),
    option(
        "turns", int, "--turns", help=f"chat, file: turns of a conversation. [default: {DEFAULT_TURNS}; 1 for files]"
    ),
    option("system_tokens", int, "--system-tokens", help="chat: tokens of the system prompt all share. [default: 0]"),
    option("think_s", float, "--think-time", help="chat: seconds between an answer and the next turn. [default: 0]"),
    option("file", Path, "--file", help="file: ShareGPT JSON or JSON lines; trace: Mooncake, Azure, ... (detected)."),
    option("trace_format", TraceFormat, "--trace-format", help="trace: the format. [default: seen from the file]"),
    option("hash_block_size", int, "--hash-block-size", help="trace: tokens of a block id. [default: 512]"),
    option("trace_speed", float, "--trace-speed", help="trace: 2 plays it in half the time. [default: 1]"),
    option(
        "follow_sessions",
        bool,
        "--follow-sessions/--no-follow-sessions",
        help="trace: a session's request waits for the one before and its pause. [default: recorded times]",
    ),
    option("max_context", int, "--max-context", help="Leave out longer recordings. [default: the server's context]"),
    option("token_ids", str, "--token-ids", metavar="LO:HI", help="Range of random token ids. [default: 1000:20000]"),
)
_LOAD = (
    option(
        "num_prompts", int, "--num-prompts", help="Requests; conversations in chats. [default: 100, all of a trace]"
    ),
    option(
        "request_rate",
        float,
        "--request-rate",
        help="Requests a second; inf: all at once. [default: inf, for traces their own times]",
    ),
    option(
        "burstiness", float, "--burstiness", help="Gamma shape of the gaps: 1 Poisson, less is burstier. [default: 1]"
    ),
    option("ramp_shape", RampShape, "--ramp-up-strategy", help="Let the rate move from start to end."),
    option("ramp_start", float, "--ramp-up-start-rps", help="Rate of a ramp's first request."),
    option("ramp_end", float, "--ramp-up-end-rps", help="Rate of a ramp's last request."),
    option(
        "max_concurrency",
        int,
        "--max-concurrency",
        help="Requests (conversations) in flight at most; with rate inf a closed loop. [default: no limit]",
    ),
    option("num_warmups", int, "--num-warmups", help="Requests before, not measured. [default: 2]"),
    option("duration_s", float, "--duration", help="Send nothing new after so many seconds."),
    option(
        "repeat",
        int,
        "--repeat",
        help="Times to play the load, each with new prompts: a noise band for --compare. [default: 1]",
    ),
    option("seed", int, "--seed", help="Of prompts, lengths and arrivals. [default: 0]"),
    option("reset_cache", bool, "--reset-prefix-cache", help="POST /reset_prefix_cache before each load."),
    option(
        "sweep",
        str,
        "--sweep",
        metavar="NAME=V,V,..",
        help="concurrency=1,2,4,8 or rate=0.5,1,2: find the best operating point.",
    ),
)
_MEASURE = (
    option("goodput", list[str], "--goodput", metavar="NAME:MS", help="Objectives, like ttft:500 tpot:50 e2el:9000."),
    inspect.Parameter(
        "more_objectives",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        # So that ``--goodput ttft:500 tpot:50`` reads as it does elsewhere.
        annotation=Annotated[list[str] | None, typer.Argument(metavar="[NAME:MS]", hidden=True)],
    ),
    option(
        "percentiles",
        str,
        "--metric-percentiles",
        metavar="Q,Q,..",
        help="Percentiles to report. [default: 50,90,95,99]",
    ),
    option(
        "metrics_interval_s",
        float,
        "--metrics-interval",
        help="Seconds between looks at /metrics; 0: none. [default: 1]",
    ),
)


def _as_given(given: Given) -> Given:
    return given


ENDPOINT_OPTIONS = OptionGroup(parameters=_ENDPOINT, build=_as_given)
WORKLOAD_OPTIONS = OptionGroup(parameters=_WORKLOAD, build=_as_given)
LOAD_OPTIONS = OptionGroup(parameters=_LOAD, build=_as_given)
MEASURE_OPTIONS = OptionGroup(parameters=_MEASURE, build=_as_given)


def spelling(name: str) -> str:
    """How a person writes the option ``name``; a stray word is shown as what it was taken for."""
    every = {parameter.name: parameter for parameter in (*_ENDPOINT, *_WORKLOAD, *_LOAD, *_MEASURE)}
    details = every[name].annotation.__metadata__[0]
    # Inside ``Annotated`` typer keeps the first spelling where a default would be.
    spellings = [text for text in (details.default, *(details.param_decls or ())) if str(text).startswith("--")]
    return spellings[0].partition("/")[0] if spellings else "--goodput"
