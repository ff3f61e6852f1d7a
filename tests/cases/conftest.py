"""Makes the small helpers beside the unit and property tests importable."""

import sys
from pathlib import Path

for folder in ("unit", "properties"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
