"""Errors in OpenAI's format: {"error": {message, type, param, code}}.

Knows how each kind of error becomes an HTTP response. Validation errors name the field.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ssd.errors import EngineDeadError, InvalidRequestError

logger = logging.getLogger(__name__)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_LONGEST = 2000
# pydantic adds the alternative that it tried to a location.
_ALTERNATIVE = re.compile(r"^(str|int|float|bool|none)$|\[|^[A-Z]")
# The most specific first: other errors are about alternatives that the client did not mean.
_TELLING = ("extra_forbidden", "literal_error", "missing", "value_error")


class ApiError(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        kind = _TYPES.get(self.status, "server_error")
        param = None if self.param is None else _sayable(self.param)
        error = {"message": _sayable(self.message), "type": kind, "param": param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, "application/json")


def _sayable(text: str) -> str:
    """Shorten and make encodable: messages quote what clients sent, which may be long or invalid Unicode."""
    return text[:_LONGEST].encode(errors="replace").decode()


def as_api_error(error: ApiError | EngineDeadError | InvalidRequestError) -> ApiError:
    """The message of a refused request often starts with `parameter=`, which becomes `param`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), code="engine_dead")
    named = re.match(r"(\w+)=", str(error))
    return ApiError(400, str(error), param=named.group(1) if named else None)


def invalid_body(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The most specific of the errors that pydantic found, as a 400 response."""

    def rank(error: Mapping[str, Any]) -> tuple[int, int]:
        kind = error["type"]
        return (_TELLING.index(kind) if kind in _TELLING else len(_TELLING), -len(error["loc"]))

    error = min(errors, key=rank)
    steps = [str(step) for step in error["loc"] if step != "body" and not _ALTERNATIVE.search(str(step))]
    path = ".".join(steps)
    if error["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {error.get('ctx', {}).get('error', '')}")
    if error["type"] == "extra_forbidden":
        message = f"the field {path!r} is not supported: leave it out"
        return ApiError(400, message, param=path, code="unsupported_field")
    if error["type"] == "missing":
        return ApiError(400, f"the field {path!r} is missing" if path else "the body is missing", param=path)
    message = str(error["msg"]).removeprefix("Value error, ")
    return ApiError(
        400, f"{path}: {message}" if path else message, param=path or message.split(" ")[0].rstrip(":")
    )


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    @app.exception_handler(EngineDeadError)
    @app.exception_handler(InvalidRequestError)
    async def _refused(
        _request: Request, error: ApiError | EngineDeadError | InvalidRequestError
    ) -> Response:
        return as_api_error(error).response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> Response:
        return invalid_body(error.errors()).response()

    @app.exception_handler(RecursionError)
    async def _too_deep(_request: Request, _error: RecursionError) -> Response:
        return ApiError(400, "the body is nested too deeply: make it flatter").response()

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        message = str(error.detail)
        if error.status_code in (404, 405):
            message = f"{request.method} {request.url.path}: there is no such route"
        return ApiError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(Exception)
    async def _unforeseen(_request: Request, error: Exception) -> Response:
        logger.error("a request failed", exc_info=error)
        return ApiError(500, "the server failed on this request; its log has the details").response()
