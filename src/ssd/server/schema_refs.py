"""Adjusts references in a JSON schema that is embedded in another one.

Knows which keywords contain schemas and which contain data.
"""

from typing import Any

_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords whose value maps arbitrary names to schemas."""
_DATA = ("const", "enum", "default", "examples")


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
    if keyword in _BY_NAME and isinstance(value, dict):
        return {name: moved(each, place) for name, each in value.items()}
    return moved(value, place)
