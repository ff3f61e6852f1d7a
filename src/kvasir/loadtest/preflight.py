"""Before the load: is somebody there, which model, does a request as ours work, how does it count our words."""

import asyncio
import time
from dataclasses import dataclass, replace

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.loadtest.client import Answer, Client, Tally
from kvasir.loadtest.page import ask_page
from kvasir.loadtest.plan import Prompt
from kvasir.loadtest.prompt_maker import PromptKind, PromptMaker, WordRate, make_words
from kvasir.loadtest.record import CountedBy, FailureKind, Place, Record
from kvasir.loadtest.target import Api, BodyMaker, BodyOptions, Target

_FEW_WORDS, _MANY_WORDS = 30, 120
_SEED = 1 << 40
_NUM_TOKENS = 16
_BETWEEN_TRIES_S = 1.0


class PreflightError(KvasirError):
    """The load cannot begin: no server, no model, or a first request that the server does not answer."""

    code = "preflight_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """``max_model_len``: prompt and answer together, where the server says it (vLLM's extra field)."""

    name: str
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the load may rely on.  ``bodies`` ask for usage only if the server knows what that is."""

    model: ServedModel
    bodies: BodyMaker
    rate: WordRate
    gives_usage: bool


async def find_model(client: Client, wanted: str | None, wait_s: float) -> ServedModel:
    """The ``wanted`` model, or the first that the server lists.  Waits up to ``wait_s`` for the server to answer.
    Raises ``PreflightError``."""
    deadline_s = time.monotonic() + wait_s
    while True:
        status, page = await ask_page(client.pool, client.target.get("/v1/models"))
        if status == 200 or (status and status not in (502, 503)) or time.monotonic() >= deadline_s:
            break
        await asyncio.sleep(_BETWEEN_TRIES_S)
    if status == 0:
        raise PreflightError(f"No server answers at {client.target.url}: {page}.")
    listed = _listed_models(page) if status == 200 else []
    if wanted is not None:
        return next((model for model in listed if model.name == wanted), ServedModel(name=wanted))
    if not listed:
        raise PreflightError(
            f"{client.target.url}/v1/models lists no model (HTTP {status}); say which one with --model."
        )
    return listed[0]


async def preflight(client: Client, model: ServedModel, options: BodyOptions, kind: PromptKind) -> Preflight:
    """One short request of our kind, two where words have to be counted.  Raises ``PreflightError``."""
    bodies = BodyMaker(model=model.name, api=client.target.api, options=options)
    if kind is PromptKind.TOKENS:
        prompts: list[Prompt] = [PromptMaker(kind=kind, seed=_SEED).make(_NUM_TOKENS, 0)]
    else:
        prompts = [make_words(num_words, _SEED) for num_words in (_FEW_WORDS, _MANY_WORDS)]
    first = await _try(client, bodies, prompts[0])
    if bodies.options.asks_usage and _is_about(first, "stream_options"):
        bodies = replace(bodies, options=replace(options, asks_usage=False))
        first = await _try(client, bodies, prompts[0])
    records = [first, *[await _try(client, bodies, prompt) for prompt in prompts[1:]]]
    for record in records:
        _check(record, client.target)
    gives_usage = all(record.prompt_counted_by is CountedBy.USAGE for record in records)
    rate = WordRate()
    if kind is PromptKind.WORDS and gives_usage:
        rate = WordRate.fit((_FEW_WORDS, records[0].num_prompt_tokens), (_MANY_WORDS, records[1].num_prompt_tokens))
    return Preflight(model=model, bodies=bodies, rate=rate, gives_usage=gives_usage)


async def _try(client: Client, bodies: BodyMaker, prompt: Prompt) -> Record:
    is_chat = bodies.api is Api.CHAT
    body = bodies.body([{"role": "user", "content": str(prompt)}] if is_chat else prompt, 2)
    answer = Answer(Place(session=0, turn=1, planned_s=0.0), 0, Tally())
    await client.send(body, answer)
    return answer.record(0.0)


def _is_about(record: Record, field: str) -> bool:
    failure = record.failure
    return failure is not None and failure.status in (400, 422) and field in failure.message


def _check(record: Record, target: Target) -> None:
    failure = record.failure
    if failure is None:
        return
    hint = ""
    if _is_about(record, "ignore_eos"):
        hint = "  The server does not know ignore_eos; use --no-ignore-eos."
    elif failure.kind is FailureKind.HTTP and failure.status == 404:
        hint = f"  Is /v1{target.api.route} the right route?"
    elif failure.kind is FailureKind.HTTP and failure.status == 401:
        hint = "  Give the key with --api-key."
    raise PreflightError(f"The first request to {target.url} failed ({failure.label}): {failure.message}.{hint}")


def _listed_models(page: str) -> list[ServedModel]:
    try:
        entries = msgspec.json.decode(page)["data"]
        return [ServedModel(name=str(entry["id"]), max_model_len=_length(entry)) for entry in entries]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []


def _length(entry: dict[str, object]) -> int | None:
    """vLLM and Kvasir: ``max_model_len``; llama.cpp: ``meta.n_ctx_train`` is the model's, not the server's, so not."""
    value = entry.get("max_model_len")
    return value if isinstance(value, int) and value > 0 else None
