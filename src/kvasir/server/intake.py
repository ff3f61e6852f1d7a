"""From a checked body to requests for the engine: text to tokens, names to settings.

Whatever can be refused without the engine is refused here.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kvasir.core.errors import BadRequestError
from kvasir.core.request import Request
from kvasir.scheduling.config import QueuePolicy
from kvasir.server.generation import Generation
from kvasir.server.protocol import ChatRequest, CompletionRequest
from kvasir.server.state import ServerState

Result = TypeVar("Result")

OFFLOAD_CHARS = 4096
"""Longer texts are tokenised in a thread: about a millisecond of work, the price of a thread many times over."""


async def admit_chat(state: ServerState, body: ChatRequest, request_id: str) -> Generation:
    """The admitted generation of a chat request; raises every refusal there is."""
    arrival_s = time.monotonic()
    state.check_model(body.model)
    state.engine.check()
    messages = [message.for_template() for message in body.messages]
    num_chars = sum(len(str(message["content"])) for message in messages)
    variables = body.chat_template_kwargs or {}
    is_cut = state.engine.ready.effective_config["kv_eviction"] != "off"

    def tokens() -> tuple[list[int], int]:
        pinned = state.tokenizer.num_instruction_tokens(messages, None, **variables) if is_cut else 0
        return state.tokenizer.encode_chat(messages, body.add_generation_prompt, None, **variables), pinned

    prompt, num_pinned = await _maybe_in_thread(num_chars, tokens)
    requests = [
        replace(request, num_pinned_tokens=min(num_pinned, len(prompt)))
        for request in _requests(state, body, [prompt], request_id, arrival_s)
    ]
    return await _admitted(Generation(state.engine, state.tokenizer, requests, is_continuation=False))


async def admit_completion(
    state: ServerState, body: CompletionRequest, request_id: str
) -> tuple[Generation, list[list[int]]]:
    """The admitted generation of a completion request, and its prompts as tokens; raises every refusal there is."""
    arrival_s = time.monotonic()
    state.check_model(body.model)
    state.engine.check()
    prompts: list[list[int]] = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            prompts.append(await _maybe_in_thread(len(prompt), lambda text=prompt: state.tokenizer.encode(text)))
        else:
            _check_token_ids(prompt, state.engine.ready.vocab_size)
            prompts.append(prompt)
    requests = _requests(state, body, prompts, request_id, arrival_s)
    shows_token_ids = bool(body.return_token_ids)
    generation = Generation(
        state.engine, state.tokenizer, requests, is_continuation=True, shows_token_ids=shows_token_ids
    )
    return await _admitted(generation), prompts


async def _admitted(generation: Generation) -> Generation:
    await generation.admit()
    return generation


async def _maybe_in_thread(num_chars: int, work: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(work) if num_chars > OFFLOAD_CHARS else work()


def _check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise BadRequestError(
                f"prompt names token id {token_id}, but the vocabulary goes from 0 to {vocab_size - 1}.", param="prompt"
            )


def _requests(
    state: ServerState,
    body: ChatRequest | CompletionRequest,
    prompts: Sequence[Sequence[int]],
    request_id: str,
    arrival_s: float,
) -> list[Request]:
    ready = state.engine.ready
    if body.priority and ready.policy is not QueuePolicy.PRIORITY:
        raise BadRequestError(
            f"priority {body.priority} needs a server started with --scheduling-policy priority; this one serves "
            "first come, first served.",
            param="priority",
        )
    sampling = body.sampling()
    sampling.check_vocabulary(ready.vocab_size)
    return [
        Request(
            request_id=f"{request_id}-{number}",
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            eos_token_ids=state.tokenizer.eos_ids,
            arrival_s=arrival_s,
            priority=body.priority,
            cache_salt=body.cache_salt or "",
        )
        for number, prompt in enumerate(prompts)
    ]
