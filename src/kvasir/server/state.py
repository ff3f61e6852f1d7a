"""What every route needs, made once when the engine is ready."""

import time
from dataclasses import dataclass, field

from kvasir import __version__
from kvasir.server.config import ServerConfig
from kvasir.server.engine_client import EngineClient
from kvasir.server.errors import ModelNotFoundError
from kvasir.server.metrics import ServerMetrics
from kvasir.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """``effective_config``: engine and server, by flag name.  ``created`` (Unix seconds): when the server was ready."""

    config: ServerConfig
    engine: EngineClient
    tokenizer: Tokenizer
    effective_config: dict[str, str]
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_name(self) -> str:
        """The name clients use."""
        return self.engine.model_name

    @property
    def metrics(self) -> ServerMetrics:
        return self.engine.metrics

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints: the same code, weights and cache layout, so the same seed gives the same answer."""
        ready = self.engine.ready
        return f"kvasir-{__version__}-{ready.model_digest[:8]}-{ready.layout_digest[:8]}"

    def check_model(self, name: str | None) -> None:
        """Raise ``ModelNotFoundError`` unless ``name`` is the served model (None stands for it)."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(
                f"The model {name!r} is not served here; this server has {self.model_name!r}.", param="model"
            )
