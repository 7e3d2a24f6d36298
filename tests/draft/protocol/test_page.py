"""docs/protocol.md names exactly the messages, fields, columns and limits that the code has."""

import re
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import msgspec
import pytest

from ssd.draft.protocol import codec
from ssd.draft.protocol import messages as wire
from ssd.draft.protocol.messages import AnyMessage, Hello, tokenizer_fingerprint

PAGE = (Path(__file__).parents[3] / "docs/protocol.md").read_text()

_TYPES = {
    int: {"int"},
    float: {"float"},
    bool: {"bool"},
    str: {"text"},
    bytes: {"bytes", "ints", "longs", "floats"},
    list: {"list"},
    wire.Sampling: {"map"},
}


def section(heading: str) -> str:
    [found] = re.findall(rf"^##+ {heading}$(.*?)(?=^##)", PAGE + "\n##", re.MULTILINE | re.DOTALL)
    return str(found)


def table(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose header begins with `first`."""
    lines = text.split(f"| {first} |", 1)[1].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [[row[0].strip("`"), *row[1:]] for row in rows]


def names(text: str, first: str) -> list[str]:
    return [row[0] for row in table(text, first)]


def default_of(field: Any) -> str:
    if field.default is msgspec.NODEFAULT:
        return "required" if field.default_factory is msgspec.NODEFAULT else "empty"
    match field.default:
        case None:
            return "unknown"
        case bool():
            return str(field.default).lower()
        case "" | b"":
            return "empty"
        case str():
            return f"`{field.default}`"
    return str(field.default)


KINDS = {kind.__struct_config__.tag: kind for kind in get_args(AnyMessage)}
RECORDS: dict[str, Any] = {
    **{str(tag).upper(): kind for tag, kind in KINDS.items()},
    "Sampling": wire.Sampling,
}


def test_the_page_names_all_messages() -> None:
    rows = table(section("Messages"), "message")
    assert {row[1].strip("`") for row in rows} == KINDS.keys()


@pytest.mark.parametrize("heading", RECORDS)
def test_the_page_names_all_fields_with_their_types_and_defaults(heading: str) -> None:
    rows = table(section(heading), "field")
    fields = msgspec.structs.fields(RECORDS[heading])
    assert [row[0] for row in rows] == [field.name for field in fields]
    for (name, kind, default, *_), field in zip(rows, fields, strict=True):
        [annotated] = [each for each in get_args(field.type) or [field.type] if each is not NoneType] or [0]
        origin = list if getattr(field.type, "__origin__", None) is list else annotated
        assert kind in _TYPES[origin], name
        assert default == default_of(field), name


@pytest.mark.parametrize(("heading", "heads"), [("OUTCOME", wire.OutcomeHeads), ("NODES", wire.NodesHeads)])
def test_the_page_names_all_columns(heading: str, heads: Any) -> None:
    assert names(section(heading), "column of `heads`") == list(heads._fields)


def test_the_page_names_all_limits() -> None:
    constants = {
        name: value
        for module in (wire, codec)
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, int | float)
    }
    rows = table(section("Limits"), "name")
    assert {row[0]: float(row[1].replace(",", "")) for row in rows} == constants


def test_the_page_names_the_ranges_of_sampling() -> None:
    def number(text: str) -> float:
        return 5e-324 if text == "above 0" else float(text.replace(",", ""))

    rows = table(section("Limits"), "field")
    found = {name: (number(least), number(most)) for name, least, most in rows}
    assert found == {name: (float(least), float(most)) for name, (least, most) in codec.RANGES.items()}


class Tokenizer:
    def get_vocab(self) -> dict[str, int]:
        return {"ab": 2, "a": 0, "<end>": 3, "b": 1, "[PAD4]": 4}

    def get_added_vocab(self) -> dict[str, int]:
        return {"<end>": 3}


def test_the_fingerprint_on_the_page_is_right() -> None:
    assert tokenizer_fingerprint(Tokenizer()) in section("The tokenizer's fingerprint")
    made = Hello.of(Tokenizer(), vocab_size=4, name="tiny", max_model_len=10)
    assert (made.version, made.oldest) == (wire.PROTOCOL_VERSION, wire.OLDEST_VERSION)


def test_rules_are_numbered_without_gaps() -> None:
    numbers = sorted(map(int, re.findall(r"^- \*\*R(\d+)\*\*", PAGE, re.MULTILINE)))
    assert numbers == list(range(1, 35))
