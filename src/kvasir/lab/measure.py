"""The contract of a measure: sized for a run, given a lab, it brings back figures."""

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from kvasir.lab.figures import MeasureResult

if TYPE_CHECKING:
    from kvasir.lab.lab import Lab


class Size(Enum):
    QUICK = "quick"
    FULL = "full"


class Measure(Protocol):
    """A frozen dataclass in a file of its own; its fields are what it can be told.

    ``needs_scores``: it reads documents token by token, which only settings that run here can do.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs_scores: ClassVar[bool]

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        """What to do in a run of ``size``, with texts of at most ``context`` tokens."""
        ...

    def run(self, lab: "Lab") -> MeasureResult: ...
