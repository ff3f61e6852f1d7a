"""Texts to be measured on: a person's own files, or what the reference model writes itself."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvasir.core.errors import ConfigError
from kvasir.lab.prose import OPENINGS, sentences
from kvasir.lab.subject import LocalSubject
from kvasir.text.tokenizer import Tokenizer

DATA_VARIABLE = "KVASIR_DATA"
_LEAST_WORDS = 4
"""A sentence of a haystack."""
_SUFFIXES = (".raw", ".txt")
_SPLITS_NOT_MEASURED_ON = ("train", "valid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Token ids of a running text; ``start`` is the first that is worth a score (what is before is a prompt)."""

    token_ids: tuple[int, ...]
    start: int


class Texts(Protocol):
    """Where running text comes from.  ``description`` goes into the report."""

    @property
    def description(self) -> str: ...

    def passages(self, num: int, num_tokens: int) -> list[Passage]:
        """``num`` different passages of at most ``num_tokens``, the same every time."""
        ...

    def sentences(self, seed: int) -> Iterator[str]:
        """Filler for haystacks, without an end."""
        ...


class FileTexts:
    """Files of plain text, cut at even distances.  Raises ``ConfigError`` when one cannot be read or all are short."""

    def __init__(self, files: Sequence[Path], tokenizer: Tokenizer) -> None:
        self._texts = [_read(file) for file in files]
        self._tokenizer = tokenizer
        self._token_ids: list[list[int]] | None = None
        self._sentences: dict[int, list[str]] = {}
        self.description = ", ".join(file.name for file in files)

    def passages(self, num: int, num_tokens: int) -> list[Passage]:
        if self._token_ids is None:
            self._token_ids = [self._tokenizer.encode(text, add_special_tokens=False) for text in self._texts]
        prefix = [self._tokenizer.bos_id] if self._tokenizer.adds_bos and self._tokenizer.bos_id is not None else []
        length = num_tokens - len(prefix)
        long_enough = [ids for ids in self._token_ids if len(ids) >= length]
        if not long_enough:
            raise ConfigError(
                f"No text has {num_tokens} tokens ({self.description}: "
                f"{', '.join(str(len(ids)) for ids in self._token_ids)}); give a longer --text or a smaller "
                "--max-model-len."
            )
        passages = []
        for i in range(num):
            ids = long_enough[i % len(long_enough)]
            # The i-th cut of this file, of all cuts it gets, spread over its whole length.
            cut, num_cuts = divmod(i, len(long_enough))[0], -(-num // len(long_enough))
            start = cut * (len(ids) - length) // max(1, num_cuts - 1)
            passages.append(Passage(token_ids=(*prefix, *ids[start : start + length]), start=1))
        return passages

    def sentences(self, seed: int) -> Iterator[str]:
        """Sentences of one of the files, from a place in it: ``seed`` chooses both."""
        number = seed % len(self._texts)
        if number not in self._sentences:
            self._sentences[number] = _split_sentences(self._texts[number])
        found = self._sentences[number]
        if not found:
            yield from sentences(seed)
        position = seed * 7919
        while True:
            yield found[position % len(found)]
            position += 1


class SelfTexts:
    """Answers that the reference model writes, drawn from its own distribution (temperature 1), each as long as asked.

    Needs no data.  On such text perplexity is the model's own entropy: differences between settings mean what they
    mean elsewhere, the absolute figure is not to be compared with that of another text.
    """

    description = "text that the reference writes itself (temperature 1, fixed seeds)"

    def __init__(self, writer: LocalSubject) -> None:
        self._writer = writer
        self._written: dict[tuple[int, int], list[Passage]] = {}

    def passages(self, num: int, num_tokens: int) -> list[Passage]:
        if (num, num_tokens) not in self._written:
            openings = [OPENINGS[i % len(OPENINGS)] for i in range(num)]
            written = self._writer.write(openings, num_tokens)
            self._written[num, num_tokens] = [
                Passage(token_ids=prompt + answer, start=len(prompt)) for prompt, answer in written
            ]
        return self._written[num, num_tokens]

    def sentences(self, seed: int) -> Iterator[str]:
        return sentences(seed)


class NoTexts:
    """For servers alone: haystacks are made up, and no passage can be read token by token."""

    description = "made-up prose"

    def passages(self, num: int, num_tokens: int) -> list[Passage]:
        raise ConfigError("Reading text token by token needs a model that runs here.")

    def sentences(self, seed: int) -> Iterator[str]:
        return sentences(seed)


def text_files(given: Sequence[Path]) -> list[Path]:
    """The files of ``given`` (--text), else those of the folder that KVASIR_DATA names, else none.

    Of a folder: ``*.raw`` and ``*.txt``, without training and validation splits (those are for calibrating).
    """
    if given:
        return list(given)
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise ConfigError(f"{DATA_VARIABLE} names {folder}, which is not a folder.")
    return [
        file
        for file in sorted(Path(folder).iterdir())
        if file.suffix in _SUFFIXES and not any(word in file.name for word in _SPLITS_NOT_MEASURED_ON)
    ]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The text {file} cannot be read ({error}).") from error


def _split_sentences(text: str) -> list[str]:
    """Paragraphs (however their lines are wrapped) cut after full stops; headings and scraps are left out."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = (line.strip() for line in paragraph.splitlines())
        running = " ".join(line for line in lines if not line.startswith("="))
        found += [part.strip() for part in re.split(r"(?<=[.!?])\s+", running)]
    return [sentence for sentence in found if len(sentence.split()) >= _LEAST_WORDS]
