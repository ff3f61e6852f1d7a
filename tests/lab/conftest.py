"""Makes the hand-made models and the shared helpers importable, and keeps one lab for all tests of a module."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for folder in (TESTS, TESTS / "lab"):
    sys.path.insert(0, str(folder))
