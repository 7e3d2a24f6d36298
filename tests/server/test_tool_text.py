"""Tools reach a model whose chat template knows none."""

import json
from typing import Any

import pytest

from ssd.server.pieces import Call
from ssd.server.tools import KnownFormat, knows_tools, spelled_out, tool_splitter
from tests.server.process import ServerProcess

_FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_ASKED = {"role": "user", "content": "How is Rome?"}


def test_who_knows_tools() -> None:
    assert knows_tools("{% if tools %}")
    assert knows_tools({"default": "{{ messages }}", "tool_use": "{{ tools }}"})
    assert not knows_tools("{{ messages }}")


def test_tools_join_what_the_system_message_says() -> None:
    system, asked = spelled_out([{"role": "system", "content": "Be kind."}, _ASKED], _TOOLS, "hermes")
    assert system["role"] == "system"
    assert system["content"].startswith("Be kind.\n\n")
    assert json.dumps(_FUNCTION) in system["content"]
    assert asked == _ASKED


def test_a_conversation_without_one_gets_it() -> None:
    system, asked = spelled_out([_ASKED], _TOOLS, "llama3")
    assert (system["role"], asked) == ("system", _ASKED)
    assert spelled_out([_ASKED], [], "llama3") == [_ASKED]


@pytest.mark.parametrize("kind", ["hermes", "llama3"])
def test_calls_stand_as_the_model_is_to_write_them(kind: KnownFormat) -> None:
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "1", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": "1", "content": "sunny"}
    _, spelled, told = spelled_out([_ASKED, called, result], [], kind)
    splitter = tool_splitter(kind, ["weather"])
    [call] = splitter.add(spelled["content"]) + splitter.finish()
    assert isinstance(call, Call)
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Rome"})
    assert (told["role"], "sunny" in told["content"]) == ("user", True)


def test_a_server_tells_its_model(hurried: ServerProcess) -> None:
    def num_tokens(**more: Any) -> int:
        body = {"messages": [_ASKED], "max_tokens": 1, **more}
        answer = hurried.http.post("/v1/chat/completions", json=body).json()
        return int(answer["usage"]["prompt_tokens"])

    alone = num_tokens()
    assert num_tokens(tools=_TOOLS) > alone + 50
    assert num_tokens(tools=_TOOLS, tool_choice="none") == alone
