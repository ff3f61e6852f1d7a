"""How long work tells a person that it is going on; the command line draws it, everyone else may ignore it."""

from typing import Protocol


class Progress(Protocol):
    def __call__(self, stage: str, fraction: float) -> None:
        """``stage`` is a short label ("load weights"); ``fraction`` in [0, 1], 1.0 ends the stage."""
        ...


def no_progress(stage: str, fraction: float) -> None:
    """Says nothing."""
