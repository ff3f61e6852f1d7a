"""The rows that are drawn from: logits and each row's own settings."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.engine.ranking import F32, I64

F64 = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class DrawRows:
    """What is drawn from.  ``logits`` [R, V] fp32; everything else [R].

    ``maxima`` are the rows' largest logits, all finite.  ``temperature`` > 0; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0
    mean no limit.  ``uniforms`` are in [0, 1).
    """

    logits: F32
    maxima: F32
    temperature: F32
    top_k: I64
    top_p: F64
    min_p: F64
    uniforms: F64

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    def select(self, rows: I64) -> "DrawRows":
        """The rows named, in that order, copied; itself when that is all rows as they are."""
        if len(rows) == len(self.logits) and (rows == np.arange(len(rows))).all():
            return self
        return DrawRows(
            logits=self.logits[rows],
            maxima=self.maxima[rows],
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            uniforms=self.uniforms[rows],
        )
