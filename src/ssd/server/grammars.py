"""Builds the grammar of an answer from response_format, structured_outputs or tool_choice.

Knows OpenAI's and vLLM's names and how two families of models write tool calls. Does not know tokens: the
engine applies the grammar.
"""

import json
from typing import Any

from ssd.sampling import Grammar
from ssd.server.errors import ApiError
from ssd.server.schemas import ChatCompletionRequest, ChosenTool, GenerationRequest, Tool
from ssd.server.tools import CLOSE, OPEN, KnownFormat

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords of JSON schemas whose value maps arbitrary names to schemas."""
_DATA = ("const", "enum", "default", "examples")
"""Keywords whose value is data."""


def chat_grammar(body: ChatCompletionRequest, calls: KnownFormat | None, tokenizer: Any) -> Grammar | None:
    """The grammar of the answer, or None. At most one of the three fields may ask for one."""
    found = {
        "response_format": _response_format(body),
        "structured_outputs": structured_outputs(body),
        "tool_choice": _forced_call(body, calls, tokenizer),
    }
    asked = [name for name, grammar in found.items() if grammar is not None]
    if len(asked) > 1:
        raise ApiError(400, f"{asked[0]} and {asked[1]} exclude each other: give one", param=asked[1])
    return found[asked[0]] if asked else None


def structured_outputs(body: GenerationRequest) -> Grammar | None:
    given = body.structured_outputs
    if given is None:
        return None
    asked = [name for name in type(given).model_fields if getattr(given, name) is not None]
    if len(asked) != 1:
        message = "structured_outputs takes one of json, json_object, regex, choice and grammar"
        raise ApiError(400, message, param="structured_outputs")
    if given.json_schema is not None:
        schema = given.json_schema
        return Grammar("json_schema", schema if isinstance(schema, str) else json.dumps(schema))
    if given.regex is not None:
        return Grammar("regex", given.regex)
    if given.choice is not None:
        return Grammar("choice", json.dumps(given.choice))
    if given.grammar is not None:
        return Grammar("lark", given.grammar)
    return Grammar("json_object")


def _response_format(body: ChatCompletionRequest) -> Grammar | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.json_schema is not None:
        return Grammar("json_schema", json.dumps(wanted.json_schema.schema_))
    return Grammar("json_object")


def _forced_call(body: ChatCompletionRequest, calls: KnownFormat | None, tokenizer: Any) -> Grammar | None:
    if not body.forces_call:
        return None
    if calls is None or not body.tools:
        raise ApiError(400, "tool_choice needs tools to choose from", param="tool_choice")
    choice = body.tool_choice
    tools = [_named(body.tools, choice)] if isinstance(choice, ChosenTool) else body.tools
    schemas = [_call_schema(tool, calls, f"#/anyOf/{number}") for number, tool in enumerate(tools)]
    call = json.dumps({"anyOf": schemas, "x-guidance": _COMPACT})
    if calls == "llama3":
        return Grammar("json_schema", call)
    first, last = (_marker(tokenizer, text) for text in (OPEN, CLOSE))
    return Grammar("lark", f'start: {first} "\\n" call "\\n" {last}\ncall: %json {call}')


def _marker(tokenizer: Any, text: str) -> str:
    """A tool call marker in Lark syntax: a string, or a token id if the tokenizer has an added token for it.

    Added tokens are never split into smaller ones, and llguidance does not match them as text.
    """
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    return f"<[{added[text]}]>" if text in added else json.dumps(text)


def _named(tools: list[Tool], choice: ChosenTool) -> Tool:
    for tool in tools:
        if tool.function.name == choice.function.name:
            return tool
    message = f"tool_choice names {choice.function.name!r}, which is not among the tools: choose one of them"
    raise ApiError(400, message, param="tool_choice")


def _call_schema(tool: Tool, calls: KnownFormat, place: str) -> dict[str, Any]:
    """JSON schema of a call to `tool`. References in the tool's schema are moved to `place`."""
    arguments = "parameters" if calls == "llama3" else "arguments"
    schema = tool.function.parameters or {"type": "object"}
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            arguments: moved(schema, f"{place}/properties/{arguments}"),
        },
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def moved(schema: Any, place: str) -> Any:
    """A copy of the schema for embedding at `place`, a reference such as `#/properties/x`."""
    if isinstance(schema, list):
        return [moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {keyword: _moved_value(keyword, value, place) for keyword, value in schema.items()}


def _moved_value(keyword: str, value: Any, place: str) -> Any:
    if keyword == "$ref" and isinstance(value, str) and value.startswith("#"):
        return place + value[1:]
    if keyword in _DATA:
        return value
    if keyword in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {name: moved(each, place) for name, each in value.items()}
    return moved(value, place)
