"""Makes the small helpers beside the unit, property and lab tests importable."""

import sys
from pathlib import Path

for folder in ("unit", "properties", "lab"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
