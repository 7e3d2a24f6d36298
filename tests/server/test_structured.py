"""Answers of a given form over HTTP: schemas, expressions, choices and calls that must be made."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pydantic
import pytest

from ssd.engine.grammar import GrammarCompiler
from ssd.server.grammars import chat_grammar
from ssd.server.schemas import ChatCompletionRequest, Tool
from tests.server.process import ServerProcess, processor_seconds, resident_bytes
from tests.tiny import tiny_tokenizer
from tests.wide_grammar import wide_grammar

MESSAGES: Any = [{"role": "user", "content": "Answer."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "size": {"enum": [1, 2, 3]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("look", "count")
]

TOO_LARGE = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1100)}}


def chat(server: ServerProcess, **settings: Any) -> Any:
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 200, "seed": 1, **settings}
    return server.openai.chat.completions.create(**settings).choices[0]


def test_response_format_is_kept_to(server: ServerProcess) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    choice = chat(server, response_format=wanted)
    found = json.loads(choice.message.content)
    assert choice.finish_reason == "stop"
    assert len(found["city"]) <= 5
    assert found["size"] in (1, 2, 3)
    assert choice.message.content == chat(server, response_format=wanted).message.content


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_structured_outputs(server: ServerProcess, temperature: float) -> None:
    def text(**form: Any) -> str:
        answer = server.openai.completions.create(
            model="tiny",
            prompt="x",
            max_tokens=100,
            temperature=temperature,
            seed=5,
            extra_body={"structured_outputs": form},
        )
        return answer.choices[0].text

    assert re.fullmatch("[a-c]{2,4}", text(regex="[a-c]{2,4}"))
    assert text(choice=["yes", "no"]) in ("yes", "no")
    assert set(json.loads(text(json=SCHEMA))) == {"city", "size"}
    assert text(grammar='start: "a" "b"') == "ab"


def test_a_call_that_must_be_made_is_made(forcing: ServerProcess) -> None:
    choice = chat(forcing, tools=TOOLS, tool_choice="required")
    call = choice.message.tool_calls[0].function
    assert call.name in ("look", "count")
    assert set(json.loads(call.arguments)) == {"city", "size"}
    assert choice.finish_reason == "tool_calls"
    named: Any = {"type": "function", "function": {"name": "count"}}
    assert chat(forcing, tools=TOOLS, tool_choice=named).message.tool_calls[0].function.name == "count"


def test_markers_that_are_text_are_forced_as_text() -> None:
    tools = [Tool(type="function", function={"name": "f"})]  # type: ignore[arg-type]
    body = ChatCompletionRequest(messages=MESSAGES, tools=tools, tool_choice="required")
    compiler, tokenizer = GrammarCompiler(tiny_tokenizer(), (1,), 512), tiny_tokenizer()
    grammar = chat_grammar(body, "hermes", tokenizer)
    assert grammar is not None
    call = tokenizer('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>').input_ids
    assert compiler.constraints(grammar, 1)[0].num_allowed(call) == len(call)


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_cannot_go_on_is_told_as_an_error(server: ServerProcess, stream: bool) -> None:
    form = {"structured_outputs": {"choice": ["yes", "no"]}, "bad_words": ["yes", "no"]}
    body = {"prompt": "x", "max_tokens": 20, "stream": stream, **form}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == (200 if stream else 400)
    said = answer.text.split("data: ")[-2] if stream else answer.text
    assert "no token is left" in json.loads(said)["error"]["message"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        (
            {"response_format": {"type": "text", "json_schema": {"schema": SCHEMA}}},
            "no meaning with the type",
        ),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}}, "no meaning"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "json_schema",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "regex"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"xml": "a"}}}, "xml"),
        ({"extra_body": {"structured_outputs": {"grammar": "start: other"}}}, "unknown name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": TOO_LARGE}}},
            "at most 1000 are compiled",
        ),
    ],
)
def test_a_form_is_refused_before_a_stream_begins(
    server: ServerProcess, settings: dict[str, Any], named: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=named):
            chat(server, **settings, stream=stream)


class Point(pydantic.BaseModel):
    x: Literal[1, 2]


class Line(pydantic.BaseModel):
    """Drawn from one point to another."""

    start: Point
    end: Point


class Circle(pydantic.BaseModel):
    around: Point


DRAWN: Any = [openai.pydantic_function_tool(Line), openai.pydantic_function_tool(Circle)]


@pytest.mark.parametrize("kind", ["forcing", "guarded"])
@pytest.mark.parametrize("name", ["Line", "Circle"])
def test_a_forced_call_keeps_to_a_schema_of_parts(
    kind: str, name: str, request: pytest.FixtureRequest
) -> None:
    """As the client's own `parse` sends it: strict, and with `$defs`."""
    server: ServerProcess = request.getfixturevalue(kind)
    named: Any = {"type": "function", "function": {"name": name}}
    for choice in (named, "required"):
        answer = server.openai.chat.completions.parse(
            model="tiny", messages=MESSAGES, tools=DRAWN, tool_choice=choice, seed=1, max_tokens=200
        )
        calls: Any = answer.choices[0].message.tool_calls
        (call,) = calls
        assert isinstance(call.function.parsed_arguments, Line | Circle)
        assert choice == "required" or call.function.name == name


def test_an_answer_of_the_clients_own_form_is_no_call(guarded: ServerProcess) -> None:
    """Llama 3 marks calls by nothing: an object with a name and parameters could be either."""
    schema = {
        "type": "object",
        "properties": {"name": {"const": "look"}, "parameters": {"const": {"city": "x"}}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "entry", "schema": schema}}
    choice = chat(guarded, tools=TOOLS, response_format=wanted)
    assert json.loads(choice.message.content) == {"name": "look", "parameters": {"city": "x"}}
    assert choice.message.tool_calls is None


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"type": "function", "function": "count"}, "tool_choice.function"),
        ({"type": "function", "function": None}, "tool_choice.function"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "function": {"name": "count", "arguments": "{}"}}, "function.arguments"),
        ({"type": "function", "function": {"name": "count"}, "mode": "auto"}, "tool_choice.mode"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS}}, "tool_choice"),
        ({"type": "function", "function": {"name": "jump"}}, "jump"),
        ({}, "tool_choice"),
        ("any", "tool_choice"),
        (["required"], "tool_choice"),
    ],
)
def test_a_choice_of_an_odd_shape_is_refused_by_name(forcing: ServerProcess, choice: Any, named: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "tools": TOOLS, "tool_choice": choice}
    response = forcing.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("tool_choice")
    assert named in response.json()["error"]["message"]


BOMB = {"type": "integer", "multipleOf": 100000007}
"""Compiling it takes minutes, and gigabytes."""


def test_a_grammar_that_would_compile_for_ever_harms_nobody(server: ServerProcess) -> None:
    """Those of others are answered while it is tried, and nothing of it is left in the engine."""
    known, new = {"choice": ["known", "old"]}, {"choice": ["new", "young"]}
    assert formed(server, known) == 200
    engine = server.children[0]
    before = resident_bytes(engine)
    with ThreadPoolExecutor(1) as pool:
        bomb = pool.submit(formed, server, {"json": BOMB})
        time.sleep(0.2)
        assert [formed(server, known), formed(server, new)] == [200, 200]
        assert not bomb.done()
        assert bomb.result() == 400
    assert resident_bytes(engine) - before < 50 << 20
    assert formed(server, {"json": BOMB}) == 400


def formed(server: ServerProcess, form: dict[str, Any]) -> int:
    body = {"prompt": "x", "max_tokens": 5, "structured_outputs": form}
    return server.http.post("/v1/completions", json=body).status_code


def test_a_grammar_of_dear_masks_is_refused_and_others_are_answered(server: ServerProcess) -> None:
    """Its masks, not only its compiling, have an end."""
    engine = server.children[0]
    before = processor_seconds(engine)
    forms = ("start: ({})+", 'start: "once" ({})+')
    for number, form in enumerate(forms):
        lark = wide_grammar(900, form, number)
        body = {"prompt": "x", "n": 4, "max_tokens": 100, "structured_outputs": {"grammar": lark}}
        answer = server.http.post("/v1/completions", json=body)
        assert answer.status_code == 400
    assert formed(server, {"choice": ["known", "old"]}) == 200
    assert processor_seconds(engine) - before < 20
