"""Fixtures every room's tests share."""

from pathlib import Path

import pytest

from kvasir.core.errors import ModelError
from kvasir.models.resolve import resolve_model


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The converted folder of the embedded model, in the user's cache; skips when its package cannot be had."""
    try:
        return resolve_model("demo").path
    except ModelError as error:
        if "could not be downloaded" not in str(error):
            raise
        pytest.skip(str(error))
