"""Fixtures every room's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.core.errors import ModelError
from kvasir.models.resolve import resolve_model
from live_server import LiveServer, engine_settings, running_server


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The converted folder of the embedded model, in the user's cache; skips when its package cannot be had."""
    try:
        return resolve_model("demo").path
    except ModelError as error:
        if "could not be downloaded" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def live_server(demo_model: Path) -> Iterator[LiveServer]:
    """One small real server for all tests that leave it as they found it: 36 blocks of 16 tokens, contexts of 512,
    four seats, 64 tokens a step."""
    settings = engine_settings(
        num_blocks=36,
        max_model_len=512,
        threads=1,
        scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 64},
    )
    with running_server(settings) as server:
        yield server
