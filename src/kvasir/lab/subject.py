"""One setting, running here: an engine that reads documents and answers chats, exactly as it would serve them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from kvasir.core.progress import Progress, no_progress
from kvasir.core.sampling import SamplingParams
from kvasir.engine.assembly import EngineParts
from kvasir.engine.engine import Engine
from kvasir.engine.flags import effective_flags
from kvasir.engine.llm import LLM
from kvasir.engine.runner import ModelRunner
from kvasir.kv.eviction import EvictionRule
from kvasir.kv.layout import KVLayout
from kvasir.lab.chat import Chat, Reply, encode_chat, num_instruction_tokens
from kvasir.lab.document import Document
from kvasir.lab.forcing import ForcedExecutor, Reader, RowSink


class Subject(Protocol):
    """Anything that answers chats.  ``name`` is unique within a lab."""

    name: str

    def ask(self, chats: Sequence[Chat], progress: Progress = no_progress) -> list[Reply]:
        """Answers in the order of ``chats``, which run together."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectFacts:
    """What a report says of a local setting; digests tie the report to what is served later.

    ``bytes_per_token``: KV bytes of a sequence of ``context`` tokens over its length, so that what windows give back
    counts.
    """

    name: str
    model_digest: str
    layout_digest: str
    weight_dtype: str
    kernels: str
    flags: dict[str, str]
    bytes_per_token: float
    context: int


class LocalSubject:
    """Owns its engine.  ``is_other_batch``: work is queued in another order and with companions, for the floor."""

    def __init__(self, name: str, parts: EngineParts, *, is_other_batch: bool = False) -> None:
        self.name = name
        self._executor = ForcedExecutor(cast(ModelRunner, parts.executor))
        self.engine = Engine(replace(parts, executor=self._executor))
        self._llm = LLM.from_engine(self.engine)
        self.tokenizer = self._llm.tokenizer
        self._reader = Reader(self.engine, self._executor)
        self._is_other_batch = is_other_batch

    @property
    def vocab_size(self) -> int:
        return self.engine.model_config.vocab_size

    @property
    def max_tokens(self) -> int:
        """The longest document or conversation it takes."""
        return self.engine.max_model_len

    def facts(self) -> SubjectFacts:
        engine = self.engine
        return SubjectFacts(
            name=self.name,
            model_digest=engine.model_digest,
            layout_digest=engine.layout.digest,
            weight_dtype=engine.config.weight_dtype.value,
            kernels=engine.kernels_name,
            flags=effective_flags(engine.config),
            bytes_per_token=bytes_per_token(engine.layout, engine.max_model_len, engine.config.cache.eviction),
            context=engine.max_model_len,
        )

    def read(self, documents: Sequence[Document], sink: RowSink, progress: Progress = no_progress) -> None:
        """Feed ``documents`` token by token; ``sink`` gets their logits (see ``RowSink``) under their index here."""
        numbered = list(enumerate(documents))
        self._reader.read(self._other_batch(numbered) if self._is_other_batch else numbered, sink, progress)

    def ask(self, chats: Sequence[Chat], progress: Progress = no_progress) -> list[Reply]:
        order = list(range(len(chats)))
        if self._is_other_batch:
            order.reverse()
        progress("answer", 0.0)
        prompts = [encode_chat(self.tokenizer, chats[i].messages) for i in order]
        sampling = [
            SamplingParams(temperature=chats[i].temperature, max_tokens=chats[i].max_tokens, seed=chats[i].seed)
            for i in order
        ]
        pinned = [num_instruction_tokens(self.tokenizer, chats[i].messages) for i in order]
        outputs = self._llm.generate(prompts, sampling, num_pinned_tokens=pinned) if prompts else []
        replies: dict[int, Reply] = {}
        for i, output in zip(order, outputs, strict=True):
            (answer,) = output.outputs
            replies[i] = Reply(text=answer.text, token_ids=answer.token_ids, has_ended=answer.finish_reason == "stop")
        progress("answer", 1.0)
        return [replies[i] for i in range(len(chats))]

    def write(self, openings: Sequence[str], num_tokens: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt ids, answer ids) of ``num_tokens`` together, drawn at temperature 1; no answer ends early."""
        prompts = [encode_chat(self.tokenizer, [{"role": "user", "content": opening}]) for opening in openings]
        lengths = [num_tokens - len(prompt) for prompt in prompts]
        sampling = [
            SamplingParams(temperature=1.0, max_tokens=length, min_tokens=length, seed=seed)
            for seed, length in enumerate(lengths)
        ]
        outputs = self._llm.generate(prompts, sampling)
        return [(output.prompt_token_ids, output.outputs[0].token_ids) for output in outputs]

    def close(self) -> None:
        self._llm.close()

    @staticmethod
    def _other_batch(numbered: list[tuple[int, Document]]) -> list[tuple[int, Document]]:
        """Neighbours swapped, and between them a companion that is scored nowhere: the same texts in other batches."""
        swapped: list[tuple[int, Document]] = []
        for start in range(0, len(numbered), 2):
            pair = numbered[start : start + 2]
            swapped += [*reversed(pair), (-1, _companion(pair[0][1]))]
        return swapped


def _companion(document: Document) -> Document:
    """The first third of a document, shifted by a token: something else to compute meanwhile."""
    length = max(3, len(document.token_ids) // 3)
    return Document(token_ids=document.token_ids[1 : length + 1], scored=(), num_decoded=1)


def bytes_per_token(layout: KVLayout, num_tokens: int, eviction: EvictionRule | None = None) -> float:
    """KV bytes that a sequence of ``num_tokens`` holds while it decodes, over its length.

    With ``eviction`` nearly all of it was prompt: what is left of that is held."""
    held = num_tokens if eviction is None else eviction.num_kept(num_tokens)
    return sum(spec.pool_bytes(spec.max_blocks(held, 1)) for spec in layout.groups) / num_tokens
