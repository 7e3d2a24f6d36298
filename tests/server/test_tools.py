"""Tool calls found in a model's text, wherever the text is cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.server.pieces import Call, Content, Piece
from ssd.server.tools import KnownFormat, tool_format, tool_splitter

LOOK = Call("look", '{"at": "the sky"}')
COUNT = Call("count", "{}")


def split(kind: KnownFormat, text: str, cuts: list[int] | None = None) -> tuple[str, list[Call]]:
    splitter = tool_splitter(kind, ("look", "count"))
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts or ()), len(text)]
    pieces: list[Piece] = []
    for start, end in pairwise(edges):
        pieces += splitter.add(text[start:end])
    pieces += splitter.finish()
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    return content, [piece for piece in pieces if isinstance(piece, Call)]


_LOOK = '{"name": "look", "arguments": {"at": "the sky"}}'
_BROKEN = '<tool_call>{"name": look}</tool_call>'
HERMES = {
    f"<tool_call>\n{_LOOK}\n</tool_call>": ("", [LOOK]),
    f"Let me see.\n<tool_call>{_LOOK}</tool_call>": ("Let me see.", [LOOK]),
    f'<tool_call>{_LOOK}</tool_call>\n<tool_call>{{"name": "count"}}</tool_call>': ("", [LOOK, COUNT]),
    f"<tool_call>\n{_LOOK}": ("", [LOOK]),
    f"Before.{_BROKEN}": (f"Before.{_BROKEN}", []),
    '<tool_call>{"name": "look", "argu': ('<tool_call>{"name": "look", "argu', []),
    "Nothing to call: a <b> is not a <tool>.\n": ("Nothing to call: a <b> is not a <tool>.\n", []),
    "<tool_": ("<tool_", []),
    "": ("", []),
}
LLAMA3 = {
    '{"name": "look", "parameters": {"at": "the sky"}}': ("", [LOOK]),
    '<|python_tag|>{"name": "look", "parameters": {"at": "the sky"}}': ("", [LOOK]),
    '{"name": "look", "parameters": {"at": "the sky"}}; {"name": "count", "parameters": {}}': (
        "",
        [LOOK, COUNT],
    ),
    '{"colour": "blue"}': ('{"colour": "blue"}', []),
    '{"name": "Ann", "age": 3}': ('{"name": "Ann", "age": 3}', []),
    '{"name": "jump", "parameters": {}}': ('{"name": "jump", "parameters": {}}', []),
    '{"name": "look", "at": "the sky"}': ('{"name": "look", "at": "the sky"}', []),
    '{"name": "count", "arguments": {}}; {"name": "Ann"}': (
        '{"name": "count", "arguments": {}}; {"name": "Ann"}',
        [],
    ),
    '{"name": ["look"], "parameters": {}}': ('{"name": ["look"], "parameters": {}}', []),
    '{"name": "look", "para': ('{"name": "look", "para', []),
    '{"name": "look", "parameters": {}} is a call': ('{"name": "look", "parameters": {}} is a call', []),
    'The call is {"name": "look"}.': ('The call is {"name": "look"}.', []),
    "": ("", []),
}


@pytest.mark.parametrize("text", HERMES)
def test_hermes(text: str) -> None:
    assert split("hermes", text) == HERMES[text]


@given(st.sampled_from(sorted(HERMES)), st.lists(st.integers(0, 120), max_size=16))
def test_cuts_change_nothing_in_hermes(text: str, cuts: list[int]) -> None:
    assert split("hermes", text, cuts) == split("hermes", text)


@given(st.sampled_from(sorted(LLAMA3)), st.lists(st.integers(0, 90), max_size=12))
def test_llama3(text: str, cuts: list[int]) -> None:
    assert split("llama3", text, cuts) == LLAMA3[text]


def test_arguments_are_json_text() -> None:
    _, (call,) = split("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>')
    assert json.loads(call.arguments) == {"a": 1}


def test_a_template_tells_how_its_model_calls() -> None:
    hermes = "{% if tools %}return <tool_call> with json{% endif %}"
    llama = 'Given tools, respond with {"name": function, "parameters": {}}'
    assert tool_format(hermes, "auto") == "hermes"
    assert tool_format(llama, "auto") == "llama3"
    assert tool_format("{{ messages }}", "auto") is None
    assert tool_format(None, "auto") is None
    assert tool_format(hermes, "none") is None
    assert tool_format("{{ messages }}", "llama3") == "llama3"
