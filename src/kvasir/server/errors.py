"""Refusals as HTTP: the bodies that OpenAI clients understand, and the few errors only a server can make."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from kvasir.core.errors import BadRequestError, KvasirError

logger = logging.getLogger("kvasir.server")

CLIENT_CLOSED_REQUEST = 499
"""Never reaches anybody (the socket is closed); it is what the access log shows."""


class ModelNotFoundError(BadRequestError):
    code = "model_not_found"
    http_status = 404


class UnauthorizedError(KvasirError):
    code = "invalid_api_key"
    http_status = 401
    error_type = "authentication_error"


class RequestTooLargeError(KvasirError):
    code = "request_too_large"
    http_status = 413
    error_type = "invalid_request_error"


class ShuttingDownError(KvasirError):
    """The server was asked to stop; requests in flight and new ones are answered with this."""

    code = "shutting_down"
    http_status = 503


class RefusedByEngineError(KvasirError):
    """A refusal that the engine process made, as it came over the wire."""

    def __init__(self, message: str, *, code: str, http_status: int, param: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.http_status = http_status
        self.param = param
        self.error_type = "invalid_request_error" if http_status < 500 else "server_error"


def error_body(error: KvasirError) -> dict[str, Any]:
    """The JSON body of a refusal, as OpenAI writes it."""
    return {
        "error": {
            "message": str(error),
            "type": error.error_type,
            "param": getattr(error, "param", None),
            "code": error.code,
        }
    }


def error_response(error: KvasirError) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if error.http_status == HTTPStatus.UNAUTHORIZED else None
    return JSONResponse(error_body(error), status_code=error.http_status, headers=headers)


def internal_error() -> KvasirError:
    """What a client is told about a fault of ours; the traceback goes to the log."""
    return KvasirError("Something went wrong inside the server; its log has the details.")


def exception_handlers(on_refused: Callable[[str], None]) -> dict[Any, Any]:
    """Handlers for the application; ``on_refused`` gets the code of every refusal that becomes a response."""

    async def on_kvasir_error(_: Request, error: KvasirError) -> JSONResponse:
        on_refused(error.code)
        return error_response(error)

    async def on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
        refusal = KvasirError(f"{request.method} {request.url.path}: {error.detail}.")
        refusal.code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        refusal.http_status = error.status_code
        refusal.error_type = "invalid_request_error" if error.status_code < 500 else "server_error"
        response = error_response(refusal)
        response.headers.update(error.headers or {})
        return response

    async def on_fault(_: Request, __: Exception) -> JSONResponse:
        return error_response(internal_error())

    return {KvasirError: on_kvasir_error, HTTPException: on_http_exception, Exception: on_fault}
