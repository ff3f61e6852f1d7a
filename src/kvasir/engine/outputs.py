"""What a finished request gives back, and the collector that builds it from the engine's events."""

from collections import deque
from dataclasses import dataclass

from kvasir.core.events import RequestFinishedEvent, TokensEvent
from kvasir.core.request import Request
from kvasir.text.output import OutputAssembler, TextDelta, TokenLogprob
from kvasir.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One of a request's n answers.

    ``finish_reason``: "stop", "length", "abort" or "error".  ``stop_reason``: the stop string or stop token id that
    ended it, None for the model's own end.  ``logprobs``: one entry per token that has text, None when not asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Seconds: waited before first scheduled, arrival to first token (None when none came), arrival to end."""

    queue_s: float
    ttft_s: float | None
    e2e_s: float
    num_preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """``prompt`` is None when token ids were given.  ``num_cached_tokens`` of the prompt came from the prefix cache.

    ``error`` says why the request failed; its outputs then hold what came before."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    num_cached_tokens: int
    metrics: RequestMetrics
    error: str | None = None

    @property
    def text(self) -> str:
        """The first answer, which is the only one unless n was above 1."""
        return self.outputs[0].text


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChunk:
    """What one answer gained: new text, the tokens that made it, and at its end the reason."""

    index: int
    delta: TextDelta

    @property
    def text(self) -> str:
        return self.delta.text


class RequestCollector:
    """Follows one request from its first event to its last.

    ``push`` returns the index of a sequence that the engine has to stop, because its text hit a stop string.
    ``chunks`` holds what nobody has read yet, if ``keeps_chunks``.  ``output`` is None until the request has ended.
    """

    def __init__(
        self, request: Request, prompt: str | None, tokenizer: Tokenizer, *, is_continuation: bool, keeps_chunks: bool
    ) -> None:
        self.request = request
        self.chunks: deque[StreamChunk] = deque()
        self.output: RequestOutput | None = None
        self._prompt = prompt
        self._keeps_chunks = keeps_chunks
        self._assemblers = [
            OutputAssembler(tokenizer, request.sampling, is_continuation=is_continuation)
            for _ in range(request.sampling.n)
        ]

    def push(self, event: TokensEvent) -> int | None:
        delta = self._assemblers[event.index].push(event)
        self._keep(event.index, delta)
        return event.index if delta.must_stop_engine else None

    def finish(self, event: RequestFinishedEvent) -> None:
        for index, assembler in enumerate(self._assemblers):
            self._keep(index, assembler.finish(event.finish_reason))
        self.output = RequestOutput(
            request_id=event.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=tuple(self._completion(index, assembler) for index, assembler in enumerate(self._assemblers)),
            num_cached_tokens=event.num_cached_tokens,
            metrics=RequestMetrics(
                queue_s=event.queue_s,
                ttft_s=event.ttft_s,
                e2e_s=event.e2e_s,
                num_preemptions=event.num_preemptions,
            ),
            error=event.error,
        )

    def _keep(self, index: int, delta: TextDelta) -> None:
        if self._keeps_chunks and not delta.is_empty:
            self.chunks.append(StreamChunk(index=index, delta=delta))

    def _completion(self, index: int, assembler: OutputAssembler) -> CompletionOutput:
        reason = assembler.finish_reason
        assert reason is not None  # finish() has run on every assembler
        has_logprobs = self.request.sampling.logprobs is not None
        return CompletionOutput(
            index=index,
            text=assembler.text,
            token_ids=tuple(assembler.token_ids),
            finish_reason=reason.value,
            stop_reason=assembler.stop_reason,
            logprobs=tuple(assembler.logprobs) if has_logprobs else None,
        )
