"""The hand-made models, made once, and the smallest labs around them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
for folder in (TESTS, TESTS / "lab"):
    sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def induction_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See ``lab_models.make_induction_model``."""
    from lab_models import make_induction_model

    return make_induction_model(tmp_path_factory.mktemp("models") / "induction")


@pytest.fixture(scope="session")
def unigram_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(name, logits) -> a model that says those logits at every position."""
    from lab_models import make_unigram_model

    folder = tmp_path_factory.mktemp("unigrams")
    return lambda name, logits: make_unigram_model(folder / name, logits)
