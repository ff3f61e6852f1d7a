"""Kvasir: an LLM server that puts the KV cache first.  ``kvasir.LLM`` is the offline door, loaded on first use."""

import os
from typing import TYPE_CHECKING

# Torch's OpenMP workers spin for milliseconds at every barrier.  When anything else wants a core, the product waits for
# a descheduled worker and a step becomes ten times slower; sleeping at once costs microseconds.  Read when torch loads.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

if TYPE_CHECKING:
    from kvasir.core.sampling import SamplingParams
    from kvasir.engine.llm import LLM

__all__ = ["LLM", "SamplingParams"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Lazy, so that ``import kvasir`` (and ``kvasir --help``) does not pay for torch.
    if name == "LLM":
        from kvasir.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from kvasir.core.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'kvasir' has no attribute {name!r}")
