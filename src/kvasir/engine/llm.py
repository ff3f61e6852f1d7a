"""The offline front door: ``LLM("demo").generate(...)`` and ``.chat(...)``, whole or streamed, in this process."""

from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, Self, SupportsIndex, cast

from kvasir.core.errors import BadRequestError, InvariantViolation
from kvasir.core.events import RequestFinishedEvent, TokensEvent
from kvasir.core.progress import Progress
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.engine.config import EngineConfig
from kvasir.engine.engine import Engine
from kvasir.engine.flag import FlagValue
from kvasir.engine.flags import make_engine_config
from kvasir.engine.outputs import RequestCollector, RequestOutput, StreamChunk
from kvasir.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
Conversation = Sequence[Message]

# Nobody else is turned away when a script queues a whole data set.
_UNLIMITED_WAITING = 1 << 62


class LLM:
    """A model in this process.  Not thread-safe.  Close it, or use it in a ``with`` block, to give the memory back.

    ``flags`` are those of the command line with underscores (``max_model_len=4096``, ``kv_cache_memory="2GiB"``, ...;
    see ``engine/flags.py``); an unknown one is refused by name.  Any number of requests may wait unless
    ``max_waiting`` says otherwise.
    """

    def __init__(
        self, model: str | None = None, *, progress: Progress | None = None, **flags: FlagValue | None
    ) -> None:
        if flags.get("max_waiting") is None:
            flags["max_waiting"] = _UNLIMITED_WAITING
        self._open(Engine.from_config(make_engine_config(model=model, **flags), progress))

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress | None = None) -> Self:
        """An ``LLM`` from a configuration that is parsed already; nothing in it is changed."""
        return cls.from_engine(Engine.from_config(config, progress))

    @classmethod
    def from_engine(cls, engine: Engine) -> Self:
        """An ``LLM`` around an engine that exists; it becomes the engine's owner."""
        llm = cls.__new__(cls)
        llm._open(engine)
        return llm

    def _open(self, engine: Engine) -> None:
        self.engine = engine
        self.tokenizer = Tokenizer.from_folder(self.engine.folder.path)
        self._collectors: dict[str, RequestCollector] = {}
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        num_pinned_tokens: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue one prompt or many, each a text or token ids; outputs come in the order of the prompts.

        ``sampling_params``: one for all, or one for each.  ``num_pinned_tokens``: how many tokens at each prompt's
        beginning are instructions, which ``kv_eviction`` leaves alone.  Raises a refusal of any before anything runs.
        """
        many = _as_prompts(prompts)
        pinned = num_pinned_tokens or [0] * len(many)
        inputs = [self._encoded(prompt, num) for prompt, num in zip(many, pinned, strict=True)]
        return self._run(inputs, _one_for_each(sampling_params, len(many)), is_continuation=True)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_variables: Any,
    ) -> list[RequestOutput]:
        """The assistant's next turn in one conversation or many, through the model's chat template.

        Messages are ``{"role": ..., "content": ...}``.  Raises refusals as ``generate`` does.
        """
        many = _as_conversations(messages)
        inputs = [self._rendered(conversation, tools, template_variables) for conversation in many]
        return self._run(inputs, _one_for_each(sampling_params, len(many)), is_continuation=False)

    def generate_stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> "TextStream":
        """Like ``generate`` for one prompt, with the text as it comes."""
        inputs = self._encoded(prompt)
        return TextStream(self, self._submit(inputs, sampling_params, is_continuation=True, keeps_chunks=True))

    def chat_stream(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_variables: Any,
    ) -> "TextStream":
        """Like ``chat`` for one conversation, with the text as it comes."""
        inputs = self._rendered(messages, tools, template_variables)
        return TextStream(self, self._submit(inputs, sampling_params, is_continuation=False, keeps_chunks=True))

    def close(self) -> None:
        """Give the memory back.  Idempotent; nothing can be generated afterwards."""
        self._collectors.clear()
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside

    def _encoded(self, prompt: Prompt, num_pinned: int = 0) -> "_Input":
        if isinstance(prompt, str):
            return _Input(prompt, self.tokenizer.encode(prompt), num_pinned)
        try:
            return _Input(None, [index(token_id) for token_id in prompt], num_pinned)
        except TypeError as error:
            raise BadRequestError("A prompt is a text or a sequence of whole token ids.", param="prompt") from error

    def _rendered(
        self, messages: Conversation, tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any]
    ) -> "_Input":
        text = self.tokenizer.apply_chat_template(messages, tools=tools, **variables)
        token_ids = self.tokenizer.encode_chat(messages, tools=tools, **variables)
        is_cut = self.engine.config.cache.eviction is not None
        pinned = self.tokenizer.num_instruction_tokens(messages, tools, **variables) if is_cut else 0
        return _Input(text, token_ids, pinned)

    def _run(
        self,
        inputs: "Sequence[_Input]",
        params: Sequence[SamplingParams | None],
        *,
        is_continuation: bool,
    ) -> list[RequestOutput]:
        collectors: list[RequestCollector] = []
        try:
            for one, sampling in zip(inputs, params, strict=True):
                collectors.append(self._submit(one, sampling, is_continuation=is_continuation, keeps_chunks=False))
            while any(collector.output is None for collector in collectors):
                self._step()
        finally:
            for collector in collectors:
                self._forget(collector)
        return [cast(RequestOutput, collector.output) for collector in collectors]

    def _submit(
        self,
        inputs: "_Input",
        sampling: SamplingParams | None,
        *,
        is_continuation: bool,
        keeps_chunks: bool,
    ) -> RequestCollector:
        prompt, token_ids, num_pinned = inputs
        request = Request(
            request_id=str(self._num_requests),
            prompt_token_ids=tuple(token_ids),
            sampling=sampling or SamplingParams(),
            eos_token_ids=self.tokenizer.eos_ids,
            num_pinned_tokens=min(num_pinned, len(token_ids)),
        )
        self.engine.add_request(request)
        self._num_requests += 1
        collector = RequestCollector(
            request, prompt, self.tokenizer, is_continuation=is_continuation, keeps_chunks=keeps_chunks
        )
        self._collectors[request.request_id] = collector
        return collector

    def _step(self) -> None:
        """One engine step; every event goes to the request it belongs to, whoever asked for the step."""
        if not self.engine.has_work:
            raise InvariantViolation("a request has not ended, but the engine has nothing to do")
        for event in self.engine.step():
            collector = self._collectors.get(event.request_id)
            if collector is None:
                continue  # aborted: its last events interest nobody
            if isinstance(event, TokensEvent):
                stopped_index = collector.push(event)
                if stopped_index is not None:
                    self.engine.stop_sequence(event.request_id, stopped_index)
            elif isinstance(event, RequestFinishedEvent):
                collector.finish(event)

    def _forget(self, collector: RequestCollector) -> None:
        """Stop following a request; one that still runs is aborted.  Idempotent."""
        known = self._collectors.pop(collector.request.request_id, None)
        if known is not None and collector.output is None:
            self.engine.abort(collector.request.request_id)


class TextStream(Iterator[StreamChunk]):
    """The chunks of one request; ``output`` is the whole of it after the last chunk.

    Closing it early (or leaving a ``with`` block) aborts the request.  Several streams may be read in turns.
    """

    def __init__(self, llm: LLM, collector: RequestCollector) -> None:
        self._llm = llm
        self._collector = collector

    @property
    def output(self) -> RequestOutput | None:
        return self._collector.output

    def __next__(self) -> StreamChunk:
        while not self._collector.chunks:
            if self._collector.output is not None or self._collector.request.request_id not in self._llm._collectors:
                self.close()
                raise StopIteration
            self._llm._step()
        return self._collector.chunks.popleft()

    def close(self) -> None:
        self._llm._forget(self._collector)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Input(NamedTuple):
    """One prompt: its text where there is one, its tokens, and how many of these are instructions at its beginning."""

    prompt: str | None
    token_ids: list[int]
    num_pinned: int


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], SupportsIndex)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    if messages and isinstance(messages[0], Mapping):
        return [cast(Conversation, messages)]
    return list(cast(Sequence[Conversation], messages))


def _one_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise BadRequestError(
            f"{len(params)} sampling_params were given for {num_prompts} prompts; give one for all or one for each.",
            param="sampling_params",
        )
    return params
