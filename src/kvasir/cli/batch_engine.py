"""Runs batch lines on an engine in this process: many at once, each answered or refused by itself."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from kvasir.cli.batch_lines import BatchLine
from kvasir.core.errors import BadRequestError, InvariantViolation, KvasirError
from kvasir.core.events import RequestFinishedEvent, TokensEvent
from kvasir.core.progress import Progress
from kvasir.core.request import Request
from kvasir.engine.config import EngineConfig
from kvasir.engine.engine import Engine
from kvasir.scheduling.config import QueuePolicy
from kvasir.server.chat import whole_chat
from kvasir.server.completions import whole_completion
from kvasir.server.finished import make_usage
from kvasir.server.protocol import ChatRequest, CompletionRequest
from kvasir.server.responses import AnswerHead, Usage
from kvasir.text.output import OutputAssembler
from kvasir.text.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class LineAnswer:
    """The answer to one line as it grows: ``assemblers`` prompt by prompt, n each.  ``error`` is the first failure."""

    line: BatchLine
    requests: Sequence[Request]
    assemblers: Sequence[OutputAssembler]
    echoes: Sequence[str]
    num_unfinished: int
    num_cached_tokens: int = 0
    error: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def usage(self) -> Usage:
        num_prompt_tokens = sum(len(request.prompt_token_ids) for request in self.requests)
        return make_usage(num_prompt_tokens, self.num_cached_tokens, self.assemblers)


class BatchEngine:
    """``submit`` lines, ``step`` until nothing is in flight; each step returns the answers that became whole."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._by_request: dict[str, tuple[LineAnswer, int]] = {}
        """Request id -> its line's answer, and the number of its first choice there."""
        self._num_in_flight = 0
        config = engine.config.scheduler
        self._most_in_flight = 4 * config.max_num_seqs

    @classmethod
    def open(cls, config: EngineConfig, progress: Progress) -> Self:
        """Load model and tokenizer; raises ``ConfigError`` or ``ModelError``."""
        engine = Engine.from_config(config, progress)
        return cls(engine, Tokenizer.from_folder(engine.folder.path))

    @property
    def num_in_flight(self) -> int:
        """Lines submitted and not whole yet."""
        return self._num_in_flight

    @property
    def has_room(self) -> bool:
        """Enough work is queued to keep every seat busy, or not: more would only take memory."""
        return self._num_in_flight < self._most_in_flight

    def close(self) -> None:
        self._engine.close()

    def submit(self, line: BatchLine) -> None:
        """Admit all prompts of a line, or raise the refusal and admit none.

        ``OverloadedError`` while others are in flight means: step, then try again."""
        answer = self._make_answer(line)
        admitted: list[Request] = []
        try:
            for request in answer.requests:
                self._engine.add_request(request)
                admitted.append(request)
        except KvasirError:
            for request in admitted:
                self._engine.abort(request.request_id)
            raise
        for number, request in enumerate(answer.requests):
            self._by_request[request.request_id] = (answer, number * request.sampling.n)
        self._num_in_flight += 1

    def step(self) -> list[LineAnswer]:
        """One engine step.  Events of a line that was refused half-way interest nobody."""
        if not self._engine.has_work:
            raise InvariantViolation(f"{self._num_in_flight} lines are unanswered, but the engine has nothing to do")
        whole: list[LineAnswer] = []
        for event in self._engine.step():
            if event.request_id not in self._by_request:
                continue
            if isinstance(event, TokensEvent):
                self._take_tokens(event)
            elif isinstance(event, RequestFinishedEvent) and (answer := self._take_end(event)).num_unfinished == 0:
                self._num_in_flight -= 1
                whole.append(answer)
        return whole

    def response_body(self, answer: LineAnswer) -> dict[str, Any]:
        """What the server would have answered."""
        body = answer.line.body
        is_chat = isinstance(body, ChatRequest)
        head = AnswerHead(
            id=f"{'chatcmpl' if is_chat else 'cmpl'}-line-{answer.line.number}",
            created=answer.created,
            model=self._engine.folder.name,
            system_fingerprint=f"kvasir-{self._engine.model_digest[:8]}-{self._engine.layout.digest[:8]}",
        )
        if is_chat:
            written = whole_chat(head, answer, with_logprobs=body.num_logprobs is not None)
        else:
            written = whole_completion(head, answer, num_logprobs=body.num_logprobs, echoes=answer.echoes)
        return msgspec.to_builtins(written)

    def _make_answer(self, line: BatchLine) -> LineAnswer:
        body = line.body
        self._check(line)
        is_chat = isinstance(body, ChatRequest)
        prompts = [self._encoded_chat(body)] if is_chat else [self._encoded(prompt) for prompt in body.prompt]
        sampling = body.sampling()
        requests = [
            Request(
                request_id=f"line-{line.number}-{number}",
                prompt_token_ids=tuple(prompt),
                sampling=sampling,
                eos_token_ids=self._tokenizer.eos_ids,
                priority=body.priority,
                cache_salt=body.cache_salt or "",
                num_pinned_tokens=self._num_instructions(body),
            )
            for number, prompt in enumerate(prompts)
        ]
        num_choices = len(requests) * sampling.n
        return LineAnswer(
            line=line,
            requests=requests,
            assemblers=[
                OutputAssembler(self._tokenizer, sampling, is_continuation=not is_chat) for _ in range(num_choices)
            ],
            echoes=[text for text in self._echoes(body) for _ in range(sampling.n)],
            num_unfinished=len(requests),
        )

    def _check(self, line: BatchLine) -> None:
        body, name = line.body, self._engine.folder.name
        if body.model is not None and body.model != name:
            raise BadRequestError(
                f"The model {body.model!r} is not the one that runs, which is {name!r}.", param="model"
            )
        if body.priority and self._engine.config.scheduler.policy is not QueuePolicy.PRIORITY:
            raise BadRequestError(f"priority {body.priority} needs --scheduling-policy priority.", param="priority")

    def _echoes(self, body: ChatRequest | CompletionRequest) -> list[str]:
        """Per prompt, what goes before its answer: the prompt itself when ``echo`` asks for it."""
        if isinstance(body, ChatRequest):
            return [""]
        if not body.echo:
            return [""] * len(body.prompt)
        return [prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt) for prompt in body.prompt]

    def _encoded_chat(self, body: ChatRequest) -> list[int]:
        messages = [message.for_template() for message in body.messages]
        return self._tokenizer.encode_chat(
            messages, body.add_generation_prompt, None, **(body.chat_template_kwargs or {})
        )

    def _num_instructions(self, body: ChatRequest | CompletionRequest) -> int:
        if self._engine.config.cache.eviction is None or not isinstance(body, ChatRequest):
            return 0
        messages = [message.for_template() for message in body.messages]
        return self._tokenizer.num_instruction_tokens(messages, None, **(body.chat_template_kwargs or {}))

    def _encoded(self, prompt: str | list[int]) -> list[int]:
        return self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _take_tokens(self, event: TokensEvent) -> None:
        answer, first_choice = self._by_request[event.request_id]
        delta = answer.assemblers[first_choice + event.index].push(event)
        if delta.must_stop_engine:
            self._engine.stop_sequence(event.request_id, event.index)

    def _take_end(self, event: RequestFinishedEvent) -> LineAnswer:
        answer, first_choice = self._by_request.pop(event.request_id)
        for assembler in answer.assemblers[first_choice : first_choice + answer.requests[0].sampling.n]:
            assembler.finish(event.finish_reason)
        answer.num_cached_tokens += event.num_cached_tokens
        answer.num_unfinished -= 1
        answer.error = answer.error or event.error
        return answer
