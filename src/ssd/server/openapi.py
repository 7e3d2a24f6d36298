"""The description of the API at /openapi.json: FastAPI's own, plus responses, errors and ranges.

Knows the formats of responses and errors. Only describes: requests are validated elsewhere.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ssd.config.server import ServerConfig
from ssd.sampling import params
from ssd.server.answers import ChatChunk, ChatCompletion, Completion
from ssd.server.responses_output import ResponseAnswer, ResponseEvent

Shape = dict[str, Any]
_OF_RESPONSES = (
    *("model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "draft"),
)
PLACE = "#/components/schemas/"


def field_shapes(config: ServerConfig, model_name: str) -> dict[str, dict[str, Shape]]:
    """JSON schemas by request model and field."""
    model = {"model": _optional({"type": "string", "enum": [model_name]})}
    tokens = {"type": "array", "items": _integer(0), "minItems": 1}
    messages = {"type": "array", "items": {"$ref": f"{PLACE}ChatMessage"}, "minItems": 1}
    generation = {**model, **_sampling(config), **_ends(config)}
    top = _optional(_integer(0, config.max_logprobs))
    prompts = _list(_text(), config.max_prompts), _list(tokens, config.max_prompts)
    return {
        "CompletionRequest": {
            **generation,
            "prompt": {"anyOf": [_text(), tokens, *prompts]},
            "logprobs": top,
        },
        "ChatCompletionRequest": {
            **generation,
            "messages": messages,
            "top_logprobs": top,
            "max_completion_tokens": _optional(_integer(1, params.MAX_COUNT)),
        },
        "ResponsesRequest": {
            **{name: shape for name, shape in generation.items() if name in _OF_RESPONSES},
            "top_logprobs": top,
            "max_output_tokens": _optional(_integer(1, params.MAX_COUNT)),
        },
        "TokenizeRequest": {**model, "messages": _optional(messages)},
        "DetokenizeRequest": {**model, "tokens": {"type": "array", "items": _integer(0)}},
    }


def _sampling(config: ServerConfig) -> dict[str, Shape]:
    penalty = _optional(_number(-2, 2))
    bias = {
        "type": "object",
        "maxProperties": params.MAX_LOGIT_BIAS,
        "propertyNames": {"pattern": "^[0-9]{1,7}$"},
        "additionalProperties": _number(-100, 100),
    }
    return {
        "temperature": _optional(_number(0, params.MAX_TEMPERATURE)),
        "top_p": _optional(_number(0, 1)),
        "top_k": _optional(_integer(-1, params.MAX_COUNT)),
        "min_p": _optional(_number(0, 1)),
        "repetition_penalty": _optional(_number(0.01, 100)),
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "logit_bias": _optional(bias),
        "bad_words": _optional(_list(_text(params.MAX_BAD_WORD_CHARS), params.MAX_BAD_WORDS, least=0)),
        "prompt_logprobs": _optional(_integer(0, config.max_logprobs)),
        "n": _optional(_integer(1, config.max_n)),
        "draft": _optional({"type": "string", "maxLength": params.MAX_DRAFT_CHARS}),
    }


def _ends(config: ServerConfig) -> dict[str, Shape]:
    stop = {"type": "string", "maxLength": params.MAX_STOP_CHARS}
    return {
        "stop": _optional(stop, _list(stop, config.max_stop, least=0)),
        "stop_token_ids": _optional(_list(_integer(0), params.MAX_STOP_TOKEN_IDS, least=0)),
        "min_tokens": _optional(_integer(0, params.MAX_COUNT)),
        "max_tokens": _optional(_integer(1, params.MAX_COUNT)),
    }


def _optional(*shapes: Shape) -> Shape:
    return {"anyOf": [*shapes, {"type": "null"}]}


def _number(least: float, most: float) -> Shape:
    return {"type": "number", "minimum": least, "maximum": most}


def _integer(least: int, most: int | None = None) -> Shape:
    return {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})}


def _text(longest: int | None = None) -> Shape:
    return {"type": "string", "minLength": 1, **({} if longest is None else {"maxLength": longest})}


def _list(items: Shape, most: int, *, least: int = 1) -> Shape:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


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
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": event}
        stream = {
            "type": "object", "description": _STREAMED, "properties": {"data": data}, "required": ["data"],
        }  # fmt: skip
        content["text/event-stream"] = {"schema": stream}
    failure = {"application/json": {"schema": {"$ref": f"{PLACE}Error"}}}
    return {
        "200": {"description": "The answer.", "content": content},
        **{status: {"description": text, "content": failure} for status, text in _ERRORS.items()},
    }
