"""JSON schemas from a seeded generator, each with the length its texts have at most.

Knows the keywords the grammar library takes. Every schema is bounded (no other properties, numbers with so
many digits, strings of so many characters), because a text that need not end cannot be checked.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_NAMES = ("name", "size", "kind", "tags", "ok", "größe", "a b", "x")
_WORDS = ("red", "green", "", "naïve", 'a "b"', "1", "true", "日本")
_PATTERNS = (("^[a-c]{2,4}$", 4), ("^(up|down)$", 4), ("^[A-Z][a-z]{0,3}$", 4), ("^\\d{2}-\\d$", 4))
_BYTES_OF_A_CHARACTER = 4
_STEPS = (0.5, 0.25)
"""Fractions that binary numbers hold exactly: what is a multiple is then no matter of rounding."""


@dataclass(frozen=True, slots=True)
class Sized:
    schema: dict[str, Any]
    most_bytes: int


class SchemaMaker:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._named: dict[str, Sized] = {}
        """What $ref may name."""

    def document(self, most_bytes: int) -> dict[str, Any]:
        """A whole schema whose texts are at most so long."""
        while True:
            self._named = {"word": self._string(), "count": self._integer()}
            root = self._object(depth=2)
            if root.most_bytes <= most_bytes:
                return {**root.schema, "$defs": {name: each.schema for name, each in self._named.items()}}

    def _any(self, depth: int) -> Sized:
        flat: list[Callable[[], Sized]] = [
            *(self._string, self._pattern, self._integer, self._number),
            *(self._boolean, self._enum, self._const, self._reference, self._nullable),
        ]
        deep = [self._object, self._array, self._any_of]
        if depth and self._random.random() < 0.4:
            return self._random.choice(deep)(depth - 1)
        return self._random.choice(flat)()

    def _object(self, depth: int) -> Sized:
        names = self._random.sample(_NAMES, self._random.randint(1, 3))
        parts = {name: self._any(depth) for name in names}
        required = [name for name in names if self._random.random() < 0.7]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: part.schema for name, part in parts.items()},
            "required": required,
            "additionalProperties": False,
        }
        length = sum(_written(name) + 4 + part.most_bytes for name, part in parts.items())
        return Sized(schema, 2 + length)

    def _array(self, depth: int) -> Sized:
        item, most = self._any(depth), self._random.randint(1, 3)
        schema = {
            "type": "array",
            "items": item.schema,
            "minItems": self._random.randint(0, most),
            "maxItems": most,
        }
        return Sized(schema, 2 + most * (item.most_bytes + 2))

    def _any_of(self, depth: int) -> Sized:
        parts = [self._any(depth) for _ in range(2)]
        return Sized({"anyOf": [each.schema for each in parts]}, max(each.most_bytes for each in parts))

    def _string(self) -> Sized:
        most = self._random.randint(1, 5)
        schema = {"type": "string", "minLength": self._random.randint(0, most), "maxLength": most}
        return Sized(schema, 2 + most * _BYTES_OF_A_CHARACTER)

    def _pattern(self) -> Sized:
        pattern, length = self._random.choice(_PATTERNS)
        # A class such as \d may hold characters of any script.
        return Sized({"type": "string", "pattern": pattern}, 2 + length * _BYTES_OF_A_CHARACTER)

    def _integer(self) -> Sized:
        low = self._random.randint(-120, 100)
        high = low + self._random.randint(0, 300)
        kind = self._random.choice(("maximum", "exclusiveMaximum"))
        limits = {"minimum": low, kind: high + (kind != "maximum")}
        return Sized({"type": "integer", **limits}, 4)

    def _number(self) -> Sized:
        low = self._random.randint(-9, 9)
        limits = {"minimum": low, "maximum": low + self._random.randint(1, 20)}
        return Sized({"type": "number", **limits, "multipleOf": self._random.choice(_STEPS)}, 6)

    def _boolean(self) -> Sized:
        return Sized({"type": "boolean"}, 5)

    def _enum(self) -> Sized:
        values: list[Any] = [*self._random.sample(_WORDS, 2), self._random.choice((1, 2.5, None, True, [1]))]
        return Sized({"enum": values}, max(map(_written, values)))

    def _const(self) -> Sized:
        value = self._random.choice(("fixed", 7, None, {"a": [1, "é"]}))
        return Sized({"const": value}, _written(value))

    def _reference(self) -> Sized:
        name = self._random.choice(list(self._named)) if self._named else None
        return (
            self._string()
            if name is None
            else Sized({"$ref": f"#/$defs/{name}"}, self._named[name].most_bytes)
        )

    def _nullable(self) -> Sized:
        return Sized({"type": ["integer", "null"], "minimum": 0, "maximum": 9}, 4)


def _written(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
