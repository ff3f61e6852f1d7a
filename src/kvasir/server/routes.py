"""The routes: OpenAI's, and the ones that operators and their probes ask."""

import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from kvasir import __version__
from kvasir.server import responses
from kvasir.server.chat import chat_events, whole_chat
from kvasir.server.completions import completion_events, whole_completion
from kvasir.server.disconnect import ClientGoneError, unless_disconnected
from kvasir.server.engine_client import AbortCause
from kvasir.server.errors import CLIENT_CLOSED_REQUEST
from kvasir.server.generation import Generation
from kvasir.server.intake import admit_chat, admit_completion
from kvasir.server.parsing import parse_body
from kvasir.server.protocol import ChatRequest, CompletionRequest
from kvasir.server.sse import EventStream
from kvasir.server.state import ServerState

Answer = Callable[[ServerState, bytes, responses.AnswerHead], Coroutine[Any, Any, Response]]

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    return await _answered(request, "chatcmpl-", _answer_chat)


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    return await _answered(request, "cmpl-", _answer_completion)


@router.get("/v1/models")
async def models(request: Request) -> Response:
    return _json(responses.ModelList(data=[_model(_state(request))]))


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    state = _state(request)
    state.check_model(name)
    return _json(_model(state))


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached prefixes; blocks of running requests stay."""
    await _state(request).engine.reset_prefix_cache()
    return JSONResponse({"status": "ok"})


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine answers, else 503 with the reason."""
    state = _state(request)
    now = state.engine.health
    body = {"status": now.status.value, "reason": now.reason, "model": state.model_name}
    return JSONResponse(body, status_code=200 if now.is_ok else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(_state(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/version")
async def version(request: Request) -> Response:
    """The version and the configuration that is really in force."""
    return JSONResponse({"version": __version__, "effective_config": _state(request).effective_config})


async def _answered(request: Request, id_prefix: str, answer: Answer) -> Response:
    """Run ``answer`` while the client is there."""
    state = _state(request)
    head = responses.AnswerHead(
        id=id_prefix + secrets.token_hex(12),
        created=int(time.time()),
        model=state.model_name,
        system_fingerprint=state.fingerprint,
    )
    try:
        body = await request.body()
        return await unless_disconnected(request.receive, answer(state, body, head))
    except (ClientDisconnect, ClientGoneError):
        return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _answer_chat(state: ServerState, body: bytes, head: responses.AnswerHead) -> Response:
    asked = parse_body(body, ChatRequest)
    generation = await admit_chat(state, asked, head.id)
    with_logprobs = asked.num_logprobs is not None
    if asked.stream:
        events = chat_events(head, generation, with_logprobs=with_logprobs, with_usage=asked.includes_usage)
        return EventStream(events, lambda: generation.close(AbortCause.CLIENT_GONE), _headers(head))
    await generation.run_to_end()
    return _json(whole_chat(head, generation, with_logprobs=with_logprobs), _headers(head))


async def _answer_completion(state: ServerState, body: bytes, head: responses.AnswerHead) -> Response:
    asked = parse_body(body, CompletionRequest)
    generation, prompts = await admit_completion(state, asked, head.id)
    echoes = _echoes(state, asked, prompts, generation)
    if asked.stream:
        events = completion_events(
            head, generation, num_logprobs=asked.num_logprobs, echoes=echoes, with_usage=asked.includes_usage
        )
        return EventStream(events, lambda: generation.close(AbortCause.CLIENT_GONE), _headers(head))
    await generation.run_to_end()
    whole = whole_completion(
        head,
        generation,
        num_logprobs=asked.num_logprobs,
        echoes=echoes,
        with_token_ids=generation.shows_token_ids,
    )
    return _json(whole, _headers(head))


def _echoes(
    state: ServerState, asked: CompletionRequest, prompts: list[list[int]], generation: Generation
) -> list[str]:
    """Per choice, the text that goes before it: its prompt when ``echo`` asks for it, else nothing."""
    if not asked.echo:
        return [""] * generation.num_choices
    texts = [
        prompt if isinstance(prompt, str) else state.tokenizer.decode(token_ids, asked.skip_special_tokens is not False)
        for prompt, token_ids in zip(asked.prompt, prompts, strict=True)
    ]
    per_prompt = generation.num_choices // len(texts)
    return [text for text in texts for _ in range(per_prompt)]


def _model(state: ServerState) -> responses.Model:
    ready = state.engine.ready
    return responses.Model(
        id=state.model_name, created=state.created, max_model_len=ready.max_model_len, root=ready.model_name
    )


def _state(request: Request) -> ServerState:
    return request.app.state.server


def _headers(head: responses.AnswerHead) -> dict[str, str]:
    return {"X-Request-Id": head.id}


def _json(body: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json", headers=headers)
