"""Passkey: is one number, hidden anywhere in a long text of nothing, still found?"""

from dataclasses import dataclass
from typing import ClassVar, Self

from kvasir.lab.figures import Grid, MeasureResult
from kvasir.lab.lab import ANSWER_TOKENS, Lab
from kvasir.lab.measure import Size
from kvasir.lab.retrieval import METRICS, Retrieval
from kvasir.lab.tasks.haystack import spread
from kvasir.lab.tasks.passkey import passkey


@dataclass(frozen=True, slots=True, kw_only=True)
class Passkey:
    """Through the chat template and free generation: share of keys in the reply, by depth and length.  Settings that
    run here also say what the right answer cost (nats per token after "The pass key is"), which falls before the reply
    turns wrong."""

    name: ClassVar[str] = "passkey"
    title: ClassVar[str] = "Passkey"
    needs_scores: ClassVar[bool] = False

    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    num_keys: int

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        longest = context - ANSWER_TOKENS
        if size is Size.QUICK:
            return cls(lengths=(longest // 2, longest), depths=tuple(spread(3)), num_keys=1)
        return cls(lengths=(longest // 4, longest), depths=tuple(spread(6)), num_keys=1)

    def run(self, lab: Lab) -> MeasureResult:
        samples = [
            passkey(length, depth, 1009 * key + round(100 * depth) + length, lab.count_tokens)
            for length in self.lengths
            for depth in self.depths
            for key in range(self.num_keys)
        ]
        retrieval = Retrieval(lab, samples)
        groups = {
            f"{length} tokens": [i for i, sample in enumerate(samples) if sample.length == length]
            for length in self.lengths
        }
        return MeasureResult(
            name=self.name,
            title=self.title,
            metrics=METRICS,
            settings=retrieval.figures(groups),
            grids=(self._grid(retrieval),),
        )

    def _grid(self, retrieval: Retrieval) -> Grid:
        cells = {
            (length, depth): [
                i for i, sample in enumerate(retrieval.samples) if (sample.length, sample.depth) == (length, depth)
            ]
            for length in self.lengths
            for depth in self.depths
        }
        return Grid(
            title="Passkey found, by depth and length",
            row_label="depth",
            rows=tuple(f"{depth:.0%}" for depth in self.depths),
            column_label="tokens",
            columns=tuple(map(str, self.lengths)),
            cells={
                name: tuple(
                    tuple(float(found[cells[length, depth]].mean()) for length in self.lengths) for depth in self.depths
                )
                for name, found in retrieval.found.items()
            },
        )
