"""The exception family: every refusal says one sentence and carries a stable code and an HTTP status."""


class KvasirError(Exception):
    """Base of all refusals.  ``str(error)`` is one sentence for a person; ``code`` is stable for programs."""

    code = "internal_error"
    http_status = 500
    error_type = "server_error"


class BadRequestError(KvasirError):
    """The request cannot be served as written; nothing changed and nobody else is affected.

    ``param`` names the offending request field where there is one.
    """

    code = "invalid_request"
    http_status = 400
    error_type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(BadRequestError):
    """Prompt plus requested output is longer than ``max_model_len``."""

    code = "context_length_exceeded"


class NeverFitsError(BadRequestError):
    """The request needs more blocks than an empty pool has; it would wait for ever, so it is refused at the door."""

    code = "kv_capacity_exceeded"


class ConfigError(KvasirError):
    """A combination of settings that cannot work; raised at start, before anything is allocated."""

    code = "invalid_config"


class ModelError(KvasirError):
    """A model folder, file or config that cannot be served as it is: unknown architecture, missing weight, bad type."""

    code = "invalid_model"


class OverloadedError(KvasirError):
    """The waiting queue is full; the client should come back later."""

    code = "overloaded"
    http_status = 503


class EngineDeadError(KvasirError):
    """The engine process ended or stalled; requests in flight are answered with this."""

    code = "engine_dead"
    http_status = 503


class InvariantViolation(RuntimeError):
    """A law was broken inside Kvasir.  Never caught on the serving path: wrong answers are worse than no answers."""
