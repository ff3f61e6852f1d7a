"""Repeat-copy gap: a random block, filler, the same block again; a model that can still look back copies it."""

import random
from dataclasses import dataclass
from typing import ClassVar, Self

from kvasir.lab.document import Document, Scores
from kvasir.lab.estimate import F64, Estimate, mean_of
from kvasir.lab.figures import Curve, Figures, MeasureResult, Metric, SettingFigures
from kvasir.lab.lab import Lab
from kvasir.lab.measure import Size

_GAP = Metric(key="gap", label="copy gap", unit="nats/token", is_damage=True, is_headline=True)
_METRICS = (
    _GAP,
    Metric(key="second", label="NLL of the second copy", unit="nats/token"),
    Metric(key="first", label="NLL of the first copy", unit="nats/token"),
)
_INDUCTION_NATS = 1.0
"""The second copy must be this much likelier than the first for anything to be said about retrieval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyGap:
    """NLL of the second copy under a setting minus that under the reference, by distance.

    Intact induction heads copy at almost no cost; a setting that lost the first copy, or the heads that find it, pays
    up to ln(vocabulary) a token.  Tens of tokens show what a teacher-forced book hides.  Blocks are random tokens of
    the vocabulary's middle, or a passage of prose; half of the second copy is read as prompt, half is decoded.
    """

    name: ClassVar[str] = "copy"
    title: ClassVar[str] = "Repeat-copy gap"
    needs_scores: ClassVar[bool] = True

    distances: tuple[int, ...]
    num_seeds: int
    block_tokens: int = 64

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        """Distances double from 128 up to what the context holds."""
        block_tokens = min(64, context // 8)
        room = context - 2 * block_tokens - 2
        doubling = [128 * 2**k for k in range(16) if 128 * 2**k <= room] or [room]
        if size is Size.QUICK:
            doubling = sorted({doubling[len(doubling) // 3], doubling[-1]})
        return cls(distances=tuple(doubling), num_seeds=2 if size is Size.QUICK else 5, block_tokens=block_tokens)

    def run(self, lab: Lab) -> MeasureResult:
        trials = [
            (distance, kind, self._document(lab, distance, kind, seed))
            for distance in self.distances
            for kind in ("random", "prose")
            for seed in range(self.num_seeds)
        ]
        comparison = lab.compare([document for _, _, document in trials])
        truth = comparison.by_subject[comparison.reference]
        groups: dict[str, list[int]] = {}
        for number, (distance, kind, _) in enumerate(trials):
            groups.setdefault(f"{kind}, {distance} tokens apart", []).append(number)
        settings = {}
        for name, scores in comparison.by_subject.items():
            rows = [self._row(ours, theirs) for ours, theirs in zip(scores, truth, strict=True)]
            tasks = {group: _figures([rows[i] for i in numbers]) for group, numbers in groups.items()}
            settings[name] = SettingFigures(overall=_figures(rows), tasks=tasks)
        by_distance = {
            name: tuple(figures.tasks[f"random, {distance} tokens apart"]["gap"].value for distance in self.distances)
            for name, figures in settings.items()
            if name != comparison.reference
        }
        curve = Curve(
            title="Copy gap by distance (random blocks)",
            x_label="tokens between the copies",
            y_label="nats/token",
            x=tuple(map(float, self.distances)),
            lines=by_distance,
        )
        return MeasureResult(
            name=self.name,
            title=self.title,
            metrics=_METRICS,
            settings=settings,
            curves=(curve,),
            notes=(_induction_note(settings[comparison.reference].overall, comparison.reference),),
        )

    def _document(self, lab: Lab, distance: int, kind: str, seed: int) -> Document:
        """BOS, block, filler of ``distance`` tokens, block.

        token_ids:  [ bos | block ... | filler ........ | block ... ]
                            ^ scored from its second token  ^ likewise
        """
        tokenizer = lab.tokenizer
        number = 1000 * seed + distance
        block = (
            _random_block(lab, self.block_tokens, number)
            if kind == "random"
            else _prose_tokens(lab, self.block_tokens, 2 * number + 1)
        )
        prefix = () if tokenizer.bos_id is None else (tokenizer.bos_id,)
        filler = _prose_tokens(lab, distance, 2 * number)
        first = len(prefix)
        second = first + len(block) + len(filler)
        token_ids = (*prefix, *block, *filler, *block)
        scored = ((max(1, first + 1), first + len(block)), (second + 1, len(token_ids)))
        return Document(token_ids=token_ids, scored=scored, num_decoded=max(1, len(block) // 2))

    def _row(self, ours: Scores, theirs: Scores) -> tuple[F64, F64, F64]:
        """(gap, NLL of the second copy, NLL of the first) of one document, per token."""
        half = len(ours.nll) // 2
        return ours.nll[half:] - theirs.nll[half:], ours.nll[half:], ours.nll[:half]


def _figures(rows: list[tuple[F64, F64, F64]]) -> dict[str, Estimate]:
    gaps, seconds, firsts = zip(*rows, strict=True)
    return {"gap": mean_of(gaps), "second": mean_of(seconds), "first": mean_of(firsts)}


def _induction_note(reference: Figures, name: str) -> str:
    saved = reference["first"].value - reference["second"].value
    if saved >= _INDUCTION_NATS:
        return f"{name} saves {saved:.2f} nats/token on the second copy: the model has induction heads."
    return (
        f"{name} saves only {saved:.2f} nats/token on the second copy: this model copies too little for a small gap to "
        "prove anything."
    )


def _random_block(lab: Lab, num_tokens: int, seed: int) -> tuple[int, ...]:
    """Ids from the middle half of the vocabulary, none of them special, and none twice where there are enough."""
    vocab_size = lab.tokenizer.vocab_size
    ids = [i for i in range(vocab_size // 4, 3 * vocab_size // 4) if i not in lab.tokenizer.special_ids]
    rng = random.Random(seed)
    return tuple(rng.sample(ids, num_tokens) if len(ids) >= num_tokens else rng.choices(ids, k=num_tokens))


def _prose_tokens(lab: Lab, num_tokens: int, seed: int) -> tuple[int, ...]:
    """Exactly ``num_tokens`` of filler text."""
    token_ids: list[int] = []
    sentences = lab.texts.sentences(seed)
    while len(token_ids) < num_tokens:
        token_ids += lab.tokenizer.encode(f" {next(sentences)}", add_special_tokens=False)
    return tuple(token_ids[:num_tokens])
