"""The small loads of a probe: one stream and many, short contexts and long, so that every cost rules in one of them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvasir.core.progress import Progress

PROBE_S = 120.0
"""How long a probe plays its loads over and over (each at least once)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLoad:
    """``num_sequences`` requests that arrive at once, each ``num_prompt`` tokens in and ``num_output`` out."""

    num_sequences: int
    num_prompt: int
    num_output: int

    @property
    def name(self) -> str:
        return f"{self.num_sequences} x ({self.num_prompt} + {self.num_output})"


WARM_UP = ProbeLoad(num_sequences=1, num_prompt=48, num_output=8)
FULL_PROBE = (
    ProbeLoad(num_sequences=1, num_prompt=128, num_output=32),
    ProbeLoad(num_sequences=1, num_prompt=4096, num_output=16),
    ProbeLoad(num_sequences=1, num_prompt=1500, num_output=16),
    ProbeLoad(num_sequences=4, num_prompt=256, num_output=24),
    ProbeLoad(num_sequences=16, num_prompt=96, num_output=24),
    ProbeLoad(num_sequences=32, num_prompt=48, num_output=16),
    ProbeLoad(num_sequences=8, num_prompt=700, num_output=24),
)
"""For an engine whose steps can be seen."""
SINGLE_STREAM_PROBE = (
    ProbeLoad(num_sequences=1, num_prompt=128, num_output=128),
    ProbeLoad(num_sequences=1, num_prompt=4096, num_output=64),
    ProbeLoad(num_sequences=1, num_prompt=7500, num_output=64),
)
"""One request at a time: a fit on these knows nothing of batches, and is a test of whether it has to."""
LIVE_PROBE = (
    ProbeLoad(num_sequences=1, num_prompt=32, num_output=32),
    ProbeLoad(num_sequences=1, num_prompt=512, num_output=32),
    ProbeLoad(num_sequences=1, num_prompt=2048, num_output=32),
    ProbeLoad(num_sequences=1, num_prompt=6000, num_output=32),
    ProbeLoad(num_sequences=4, num_prompt=256, num_output=48),
    ProbeLoad(num_sequences=16, num_prompt=128, num_output=48),
    ProbeLoad(num_sequences=8, num_prompt=1024, num_output=48),
)
"""For a server of which only the answers are seen."""


def in_rounds(loads: Sequence[ProbeLoad], seconds: float, progress: Progress) -> Iterator[tuple[ProbeLoad, int]]:
    """Each load with a seed of its own, over and over until ``seconds`` have passed, but the first round whole."""
    started_s = time.perf_counter()
    round_number = 0
    while round_number == 0 or time.perf_counter() - started_s < seconds:
        round_number += 1
        for number, load in enumerate(loads):
            elapsed_s = time.perf_counter() - started_s
            if round_number > 1 and elapsed_s >= seconds:
                break
            progress("probe", min(0.99, elapsed_s / max(seconds, 1.0)))
            yield load, 1 + number + 100 * round_number
    progress("probe", 1.0)
