"""Ranges of request fields for /openapi.json.

The request models know types only; ranges are checked by SamplingParams and by the server's limits.
"""

from typing import Any

from ssd.config.server import ServerConfig
from ssd.sampling import params

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
