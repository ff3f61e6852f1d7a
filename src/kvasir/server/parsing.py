"""From the bytes of a body to a checked request, or to one sentence that says what is wrong with them."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from kvasir.core.errors import BadRequestError
from kvasir.server import unsupported
from kvasir.server.protocol import ChatRequest, CompletionRequest, GenerationFields

RequestBody = TypeVar("RequestBody", bound=GenerationFields)

_TABLES: dict[type[GenerationFields], Mapping[str, unsupported.Unsupported]] = {
    ChatRequest: unsupported.CHAT,
    CompletionRequest: unsupported.COMPLETION,
}
_MAX_REPORTED = 3


def parse_body(body: bytes, kind: type[RequestBody]) -> RequestBody:
    """Raises ``BadRequestError`` that names the field: bad JSON, wrong types, unknown or unsupported fields."""
    try:
        fields = from_json(body)
    except ValueError as error:
        raise BadRequestError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise BadRequestError(f"The body must be a JSON object, got {type(fields).__name__}.")
    fields = unsupported.drop_neutral(fields, _TABLES[kind])
    try:
        request = kind.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error, kind) from None
    request.check()
    return request


def _refusal(error: ValidationError, kind: type[GenerationFields]) -> BadRequestError:
    details = error.errors(include_url=False)
    sentences = [_sentence(detail, kind) for detail in details[:_MAX_REPORTED]]
    if len(details) > _MAX_REPORTED:
        sentences.append(f"and {len(details) - _MAX_REPORTED} more")
    return BadRequestError("; ".join(sentences) + ".", param=_path(details[0]))


def _path(detail: ErrorDetails) -> str:
    return ".".join(str(part) for part in detail["loc"])


def _sentence(detail: ErrorDetails, kind: type[GenerationFields]) -> str:
    path = _path(detail)
    if detail["type"] == "extra_forbidden":
        close = get_close_matches(path, kind.model_fields, n=1)
        return f"{path} is not a known field" + (f", did you mean {close[0]}?" if close else "")
    if detail["type"] == "missing":
        return f"{path} is required"
    if detail["type"] == "value_error":
        context: dict[str, Any] = detail.get("ctx", {})
        return f"{path} {context.get('error', detail['msg'])}"
    message = detail["msg"].replace("Input should be", "must be")
    value = repr(detail["input"])
    return f"{path} {message}, got {value if len(value) <= 60 else value[:57] + '...'}"
