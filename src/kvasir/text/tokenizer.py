"""The model's tokenizer: text to ids with exactly one BOS, ids to text, chat messages to either."""

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvasir.core.errors import BadRequestError, ModelError
from kvasir.text.chat_template import ChatTemplate, Message, read_template_sources
from kvasir.text.detokenizer import Detokenizer
from kvasir.text.token_bytes import TokenBytes

if TYPE_CHECKING:
    import tokenizers

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PROBE = "a"
_INSTRUCTING_ROLES = frozenset({"system", "developer"})
_UNLIKE_WORDS = ("0", "x")
"""Two contents that no tokenizer begins alike."""


class Tokenizer:
    """Immutable once built; ``encode`` and ``decode`` may be called from several threads.

    ``vocab_size`` is one more than the highest token id (the model's embedding may have more rows).
    ``bos_id`` is the tokenizer's own, None where it has none.  ``eos_ids`` end an answer: all that the model's
    generation_config.json, config.json and tokenizer_config.json name.  ``special_ids`` have no text of their own.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        *,
        config: Mapping[str, Any],
        eos_ids: tuple[int, ...] = (),
        template_sources: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = False
        texts = _special_texts(config)
        self.bos_id = backend.token_to_id(texts["bos_token"]) if "bos_token" in texts else None
        own_eos = backend.token_to_id(texts["eos_token"]) if "eos_token" in texts else None
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([*eos_ids, *([] if own_eos is None else [own_eos])]))
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        self.token_bytes = TokenBytes(backend)
        self.chat_template = ChatTemplate(template_sources or {}, texts)
        self._prefix, self._suffix = self._edges(config, own_eos)

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Tokenizer":
        """Read a folder in Hugging Face layout.  Without a tokenizer.json the folder is converted, once, through
        transformers.  Raises ``ModelError`` when there is no tokenizer or it is of a kind not served."""
        import tokenizers

        folder = Path(folder)
        config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
        file = folder / "tokenizer.json"
        if not file.is_file():
            from kvasir.text.convert import converted_tokenizer

            file = converted_tokenizer(folder)
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for any fault in the file
            raise ModelError(f"{file} is not a readable tokenizer ({error}).") from error
        return cls(
            backend,
            config=config,
            eos_ids=_eos_ids(folder),
            template_sources=read_template_sources(folder, config),
        )

    @property
    def adds_bos(self) -> bool:
        """Whether the model is meant to see a BOS before every prompt."""
        return self.bos_id is not None and self._prefix[:1] == [self.bos_id]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids.  Special tokens written out in ``text`` become their ids.

        With ``add_special_tokens`` the tokenizer's own prefix and suffix are added, but BOS never twice: where the
        tokenizer adds one, the result begins with exactly one, also when ``text`` brought its own.
        """
        ids = self._backend.encode(text, add_special_tokens=False).ids
        if not add_special_tokens:
            return ids
        return [*self._prefix, *self._without_bos(ids), *self._suffix]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids`` from the start of a text; see ``TokenBytes`` for what text is."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return "".join([detokenizer.push(token_id) for token_id in token_ids]) + detokenizer.finish()

    def detokenizer(self, *, skip_special_tokens: bool = True, is_continuation: bool = False) -> Detokenizer:
        skipped = self.special_ids if skip_special_tokens else frozenset()
        return Detokenizer(self.token_bytes, skipped_ids=skipped, is_continuation=is_continuation)

    def token_text(self, token_id: int) -> str:
        """One token alone, as logprobs show it; bytes that are no whole character read as U+FFFD."""
        return self.token_bytes[token_id].decode("utf-8", errors="replace")

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of a chat; raises ``BadRequestError`` (see ``ChatTemplate.render``)."""
        return self.chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a chat.  Exactly one BOS where the tokenizer adds one, whether the template writes it or not;
        nothing else is added, because the template says where turns end."""
        text = self.apply_chat_template(messages, add_generation_prompt, tools, **variables)
        ids = self.encode(text, add_special_tokens=False)
        if not self.adds_bos:
            return ids
        return [*self._prefix[:1], *self._without_bos(ids)]

    def num_instruction_tokens(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **variables: Any
    ) -> int:
        """How many tokens at the beginning of ``encode_chat`` are instructions: system (or developer) messages that
        come first, tools, and whatever the template itself puts before the first other message's content.

        0 where the template does not let the instructions stand before a message of one word."""
        leading = list(takewhile(lambda message: message.get("role") in _INSTRUCTING_ROLES, messages))
        if len(leading) == len(messages):
            return len(self.encode_chat(messages, False, tools, **variables))
        role = messages[len(leading)].get("role")
        try:
            a, b = (
                self.encode_chat([*leading, {"role": role, "content": word}], False, tools, **variables)
                for word in _UNLIKE_WORDS
            )
        except BadRequestError:
            return 0
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)

    def _without_bos(self, ids: list[int]) -> list[int]:
        if not self.adds_bos:
            return ids
        start = 0
        while start < len(ids) and ids[start] == self.bos_id:
            start += 1
        return ids[start:]

    def _edges(self, config: Mapping[str, Any], own_eos: int | None) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and after a text: its post-processor, corrected by add_bos_token and
        add_eos_token of tokenizer_config.json, which Hugging Face lets win."""
        plain = self._backend.encode(_PROBE, add_special_tokens=False).ids
        full = self._backend.encode(_PROBE, add_special_tokens=True).ids
        start = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), None)
        if start is None:
            raise ModelError("The tokenizer's post-processor rewrites the text it is given, which is not served.")
        prefix, suffix = full[:start], full[start + len(plain) :]
        if isinstance(config.get("add_bos_token"), bool) and self.bos_id is not None:
            others = [token_id for token_id in prefix if token_id != self.bos_id]
            prefix = [self.bos_id, *others] if config["add_bos_token"] else others
        if isinstance(config.get("add_eos_token"), bool) and own_eos is not None:
            others = [token_id for token_id in suffix if token_id != own_eos]
            suffix = [*others, own_eos] if config["add_eos_token"] else others
        return prefix, suffix


def _special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            texts[name] = text
    return texts


def _eos_ids(folder: Path) -> tuple[int, ...]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids += [value] if isinstance(value, int) else [i for i in value or [] if isinstance(i, int)]
    return tuple(dict.fromkeys(ids))


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} must hold a JSON object.")
    return value
