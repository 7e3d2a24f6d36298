"""A schema that becomes a part of another one still refers to itself."""

from typing import Any

from jsonschema import Draft202012Validator

from ssd.server.grammars import moved

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "left": {"$ref": "#"},
        "leaf": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]},
        "$ref": {"type": "integer"},
        "enum": {"$ref": "#/$defs/leaf"},
        "said": {"const": {"$ref": "#/$defs/leaf"}},
        "far": {"$ref": "https://example.org/schema#/x"},
    },
    "$defs": {"leaf": {"enum": ["a", "b"]}},
}


def test_only_references_to_itself_are_moved() -> None:
    properties = moved(TREE, "#/anyOf/0")["properties"]
    assert properties["left"] == {"$ref": "#/anyOf/0"}
    assert properties["leaf"]["anyOf"][0] == {"$ref": "#/anyOf/0/$defs/leaf"}
    assert properties["enum"] == {"$ref": "#/anyOf/0/$defs/leaf"}
    for name in ("$ref", "said", "far"):
        assert properties[name] == TREE["properties"][name]


def test_it_allows_what_it_did() -> None:
    whole = {"anyOf": [moved(TREE, "#/anyOf/0"), moved(TREE, "#/anyOf/1")]}
    alone, within = Draft202012Validator({**TREE}), Draft202012Validator(whole)
    for value in (
        {"left": {"leaf": "a"}},
        {"left": {"leaf": "c"}},
        {"enum": "b"},
        {"enum": 1},
        {"$ref": "x"},
    ):
        assert alone.is_valid(value) == within.is_valid(value)
