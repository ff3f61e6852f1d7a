"""Which implementation of the kernels to use."""

from enum import Enum
from importlib.util import find_spec


class KernelChoice(Enum):
    AUTO = "auto"
    """Compiled kernels; the reference where they were not built."""
    CPU = "cpu"
    REFERENCE = "reference"

    @property
    def is_compiled(self) -> bool:
        """Whether this choice leads to the compiled kernels here; nothing is loaded to find out."""
        return self is not KernelChoice.REFERENCE and find_spec("kvasir.kernels.cpu._ext") is not None
