"""From a grammar as callers write it to llguidance's own form; what would take long to compile is refused.

Knows the kinds of grammars and their bounds. Does not know tokens: what may follow what is grammar.py's.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from ssd.sampling.constraint import Grammar, GrammarError

MAX_SCHEMA_OBJECTS = 1_000
"""JSON objects in a schema, itself and each property among them. So many take up to a second to compile,
and ten times as many a minute: the properties of one object cost time by their square."""
MAX_PATTERN_PROPERTIES = 20
"""Each is compared with each other one, and that is slow: 300 take 17 s."""

MAX_SCHEMAS_IN_LARK = 100
"""Each is read from where it begins, and may be all of the text."""

_JSON_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Fixed spacing: a text that may hold any number of spaces need never end."""
_SCHEMA_IN_LARK = re.compile(r"%json\s*")


def source_of(grammar: Grammar) -> str:
    """What llguidance compiles; GrammarError where it cannot or should not."""
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
    except ValueError as error:  # a number of more than 64 bits, for one
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
            continue  # No schema, or a broken one: llguidance says so, and where.


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the grammar's text is no JSON: {error}") from error


def _choices(text: str) -> list[str]:
    choices = _parsed(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
        raise GrammarError(f"choices are a list of texts, as JSON, not {text[:60]!r}")
    return choices
