"""The description of the API at /openapi.json: FastAPI's own, plus responses, errors and ranges.

Knows the formats of responses and errors. Only describes: requests are validated elsewhere.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ssd.config.server import ServerConfig
from ssd.server.answers import ChatChunk, ChatCompletion, Completion
from ssd.server.openapi_fields import PLACE, field_shapes
from ssd.server.response_answers import ResponseAnswer, ResponseEvent

_PREFIX = "Answer."
"""Keeps the names of responses apart from those of requests."""
_ERRORS = {
    "400": "A field is wrong; `param` names it.",
    "401": "No key, or an unknown one.",
    "404": "No such model or route.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "429": "The queue is full; `Retry-After` says when to try again.",
    "503": "The model is loading, the server is shutting down or overloaded, or the engine has died.",
}
_ERROR_FIELDS = {
    "message": {"type": "string"},
    "type": {"type": "string"},
    "param": {"type": ["string", "null"]},
    "code": {"type": ["string", "null"]},
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "object", "properties": _ERROR_FIELDS, "required": list(_ERROR_FIELDS)},
    },
    "required": ["error"],
}
_STREAMED = (
    "An event whose data is a JSON object that follows contentSchema; the data of the last event is [DONE]."
)
_NOT_JSON = {"/metrics": "text/plain", "/": "text/html"}


def describe(app: FastAPI, config: ServerConfig, model_name: str) -> None:
    """Replace the app's own description."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, config, model_name)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI, config: ServerConfig, model_name: str) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas: dict[str, Any] = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)  # Validation errors are answered with 400, in OpenAI's format.
    for name, fields in field_shapes(config, model_name).items():
        schemas[name]["properties"].update(fields)
    (completion, chat, chunk, response, event), answers = msgspec.json.schema_components(
        [Completion, ChatCompletion, ChatChunk, ResponseAnswer, ResponseEvent],
        ref_template=f"{PLACE}{_PREFIX}{{name}}",
    )
    schemas.update({_PREFIX + name: each for name, each in answers.items()}, Error=_ERROR)
    shapes = {
        "/v1/completions": (completion, completion),
        "/v1/chat/completions": (chat, chunk),
        "/v1/responses": (response, event),
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"] = _responses(path, shapes)
    return document


def _responses(path: str, shapes: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    whole, event = shapes.get(path, ({}, None))
    content = {_NOT_JSON.get(path, "application/json"): {"schema": whole}}
    if event is not None:
        # Describes a single event: that is what OpenAPI checkers expect for a stream.
        said = {"type": "string", "contentMediaType": "application/json", "contentSchema": event}
        stream = {
            "type": "object", "description": _STREAMED, "properties": {"data": said}, "required": ["data"],
        }  # fmt: skip
        content["text/event-stream"] = {"schema": stream}
    failure = {"application/json": {"schema": {"$ref": f"{PLACE}Error"}}}
    return {
        "200": {"description": "The answer.", "content": content},
        **{status: {"description": text, "content": failure} for status, text in _ERRORS.items()},
    }
