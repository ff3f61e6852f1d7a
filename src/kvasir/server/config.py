"""What the HTTP side can be told; the engine has its own configuration."""

from dataclasses import dataclass

from kvasir.core.errors import ConfigError

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """``port`` 0 takes a free one.  ``served_model_name`` None: the model's own name.  ``api_key`` None: no key needed.

    ``max_request_bytes`` bounds a request body.  ``stall_timeout_s``: how long the engine may have work without
    finishing a step before health turns red and requests in flight are answered with an error.
    ``shutdown_grace_s``: what the engine gets to end by itself before it is killed.
    ``quality_report``: serve only what this file of ``kvasir quality`` measured and passed, unless it is ignored.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_key: str | None = None
    max_request_bytes: int = 16 * MIB
    stall_timeout_s: float = 60.0
    shutdown_grace_s: float = 5.0
    access_log: bool = False
    quality_report: str | None = None
    ignore_quality_report: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be between 0 and 65535, got {self.port}.")
        if self.max_request_bytes < 1:
            raise ConfigError(f"--max-request-bytes must be at least 1, got {self.max_request_bytes}.")
        if self.stall_timeout_s <= 0:
            raise ConfigError(f"--stall-timeout must be above 0 seconds, got {self.stall_timeout_s}.")
        if self.shutdown_grace_s < 0:
            raise ConfigError(f"--shutdown-grace must not be negative, got {self.shutdown_grace_s} seconds.")
        if self.api_key == "":
            raise ConfigError("--api-key must not be empty; leave it out to serve without a key.")

    def effective(self) -> dict[str, str]:
        """What is in force, by flag name, fit to be shown: the key itself is not."""
        return {
            "host": self.host,
            "port": str(self.port),
            "api_key": "not needed" if self.api_key is None else "needed",
            "max_request_bytes": str(self.max_request_bytes),
            "stall_timeout": f"{self.stall_timeout_s:g}",
            "shutdown_grace": f"{self.shutdown_grace_s:g}",
            "access_log": str(self.access_log).lower(),
            "quality_report": self._effective_report(),
        }

    def _effective_report(self) -> str:
        if self.quality_report is None:
            return "none"
        return f"{self.quality_report} (ignored)" if self.ignore_quality_report else self.quality_report
