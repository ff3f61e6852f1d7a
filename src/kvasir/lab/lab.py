"""The lab: the reference, the reference once more, and the settings under test, ready to be asked."""

from collections.abc import Sequence

from kvasir.core.progress import Progress, no_progress
from kvasir.lab.chat import Chat, Reply
from kvasir.lab.comparison import Comparison, compare
from kvasir.lab.document import Document, Scores
from kvasir.lab.figures import MeasureResult
from kvasir.lab.measure import Measure, Size
from kvasir.lab.subject import LocalSubject, Subject
from kvasir.lab.tasks.haystack import approximate_tokens
from kvasir.lab.texts import Texts
from kvasir.text.tokenizer import Tokenizer

ANSWER_TOKENS = 160
"""Room that a context leaves for questions' wrapping and answers."""


class Lab:
    """What measures work with.  ``reference`` is compared with; ``floor`` is the reference again in other batches, the
    noise below which nothing counts.  ``nudged`` is the reference with the least change there is, where it runs here:
    it reads documents and answers nothing.  ``context`` bounds prompt and answer together.

    Owns its subjects: close it, or use it in a ``with`` block.
    """

    def __init__(
        self,
        *,
        reference: Subject,
        floor: Subject,
        settings: Sequence[Subject],
        nudged: LocalSubject | None = None,
        texts: Texts,
        size: Size,
        context: int,
        progress: Progress = no_progress,
    ) -> None:
        self.reference = reference
        self.floor = floor
        self.settings = tuple(settings)
        self.nudged = nudged
        self.texts = texts
        self.size = size
        self.context = context
        self._progress = progress
        self._stage = ""
        self._compared: dict[tuple[Document, ...], Comparison] = {}

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """Those that are asked: reference, floor, settings."""
        return (self.reference, self.floor, *self.settings)

    @property
    def order(self) -> tuple[str, ...]:
        """The names of all subjects in the order of every table."""
        nudged = () if self.nudged is None else (self.nudged.name,)
        return (self.reference.name, self.floor.name, *nudged, *(subject.name for subject in self.settings))

    @property
    def can_score(self) -> bool:
        """The reference runs here, so documents can be read token by token."""
        return isinstance(self.reference, LocalSubject)

    @property
    def tokenizer(self) -> Tokenizer:
        """The reference's; only where ``can_score``."""
        return self._local(self.reference).tokenizer

    @property
    def longest_prompt(self) -> int:
        return self.context - ANSWER_TOKENS

    def count_tokens(self, text: str) -> int:
        """Tokens of ``text`` alone; an estimate where only servers are asked."""
        if not self.can_score:
            return approximate_tokens(text)
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def run(self, measure: Measure) -> MeasureResult:
        self._stage = measure.name
        self._progress(measure.name, 0.0)
        result = measure.run(self)
        self._progress(measure.name, 1.0)
        return result

    def compare(self, documents: Sequence[Document]) -> Comparison:
        """Scores of ``documents`` under all subjects that run here, the nudged one too; the same ones are read once."""
        key = tuple(documents)
        if key not in self._compared:
            reference = self._local(self.reference)
            everybody = (self.floor, self.nudged, *self.settings)
            others = [subject for subject in everybody if isinstance(subject, LocalSubject)]
            self._compared[key] = compare(reference, others, documents, self._report)
        return self._compared[key]

    def score(self, documents: Sequence[Document]) -> list[Scores]:
        """Scores of ``documents`` under the reference alone."""
        reference = self._local(self.reference)
        return compare(reference, (), documents, self._report).by_subject[reference.name]

    def ask(self, chats: Sequence[Chat]) -> dict[str, list[Reply]]:
        """The replies of every subject, by its name, in the order of ``chats``."""
        return self.ask_each({subject.name: chats for subject in self.subjects})

    def ask_each(self, chats: dict[str, Sequence[Chat]]) -> dict[str, list[Reply]]:
        """Like ``ask``, with questions of its own for every subject (a conversation depends on earlier replies)."""
        replies = {}
        for number, subject in enumerate(self.subjects):
            self._report(subject.name, number / len(self.subjects))
            replies[subject.name] = subject.ask(chats[subject.name])
        return replies

    def close(self) -> None:
        for subject in (*self.subjects, self.nudged):
            if subject is not None:
                subject.close()

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(self, stage: str, fraction: float) -> None:
        """A measure's bar shows how far its present pass over the subjects is; only its end is 1."""
        if fraction < 1.0:
            self._progress(self._stage, fraction)

    @staticmethod
    def _local(subject: Subject) -> LocalSubject:
        if not isinstance(subject, LocalSubject):
            raise TypeError(f"{subject.name} is a server; it cannot read token by token")
        return subject
