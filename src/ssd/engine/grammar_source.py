"""Translates callers' grammars to llguidance's form, and refuses those that would take long to compile.

Knows the kinds of grammars and their limits. Does not know tokens (grammar.py).
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from ssd.sampling.constraint import Grammar, GrammarError

MAX_SCHEMA_OBJECTS = 1_000
"""JSON objects in a schema, including itself and each property. 1,000 take up to a second to compile, 10,000
a minute: time grows with the square of an object's properties."""
MAX_PATTERN_PROPERTIES = 20
"""The compiler compares all pairs of patterns: 300 take 17 s."""

MAX_SCHEMAS_IN_LARK = 100
"""Each is parsed separately, and may be as long as the whole text."""

_JSON_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Fixed spacing: a text that may contain any number of spaces might never end."""
_SCHEMA_IN_LARK = re.compile(r"%json\s*")


def source_of(grammar: Grammar) -> str:
    """The grammar in llguidance's form. GrammarError: it is invalid or too large."""
    match grammar.kind:
        case "json_object":
            return _from_schema({"type": "object"})
        case "json_schema":
            schema = _parsed(grammar.text)
            _check_size(schema)
            return _from_schema(schema)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            choices = " | ".join(map(json.dumps, _choices(grammar.text)))
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case "lark":
            for schema in _schemas_in_lark(grammar.text):
                _check_size(schema)
            return LLMatcher.grammar_from_lark(grammar.text)


def _from_schema(schema: Any) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS)
    except ValueError as error:  # for example a number of more than 64 bits
        raise GrammarError(f"the json_schema cannot be used: {str(error)[:200]}") from error


def _check_size(schema: Any) -> None:
    num_objects = num_patterns = 0
    for each in _objects_in(schema):
        num_objects += 1
        patterns = each.get("patternProperties")
        num_patterns += len(patterns) if isinstance(patterns, dict) else 0
    if num_objects > MAX_SCHEMA_OBJECTS:
        raise GrammarError(
            f"the schema holds {num_objects} objects, and at most {MAX_SCHEMA_OBJECTS} are compiled: "
            "leave out what the text need not keep to"
        )
    if num_patterns > MAX_PATTERN_PROPERTIES:
        raise GrammarError(
            f"the schema has {num_patterns} patternProperties, and at most {MAX_PATTERN_PROPERTIES} are "
            "compiled: join patterns, or use additionalProperties"
        )


def _objects_in(value: Any) -> Iterator[dict[str, Any]]:
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield each
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)


def _schemas_in_lark(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    for number, found in enumerate(_SCHEMA_IN_LARK.finditer(text)):
        if number >= MAX_SCHEMAS_IN_LARK:
            raise GrammarError(f"the lark has more than {MAX_SCHEMAS_IN_LARK} schemas in it: use fewer")
        try:
            yield decoder.raw_decode(text, found.end())[0]
        except (ValueError, RecursionError):
            continue  # Not valid JSON: llguidance reports where.


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the grammar's text is not JSON: {error}") from error


def _choices(text: str) -> list[str]:
    choices = _parsed(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
        raise GrammarError(f"choices are a list of texts, as JSON, not {text[:60]!r}")
    return choices
