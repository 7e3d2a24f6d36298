"""Writes tools, calls and results as text, for chat templates without tool support.

Such templates drop them silently. With `--tool-format`, they become text before the template is applied.
Does not know how to parse calls: tools.py does.
"""

import json
from collections.abc import Sequence
from typing import Any

from ssd.engine.prompts import Message
from ssd.server.tools import CLOSE, OPEN, KnownFormat

_HOW: dict[KnownFormat, str] = {
    "hermes": f'{OPEN}{{"name": …, "arguments": {{…}}}}{CLOSE}',
    "llama3": '{"name": …, "parameters": {…}}, and nothing else',
}


def knows_tools(template: object) -> bool:
    """Whether a template supports tools. A set of named templates is assumed to have one for tools."""
    return not isinstance(template, str) or "tools" in template


def spelled_out(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]], kind: KnownFormat
) -> list[Message]:
    """The conversation with tools described in its system message, and calls and results as text."""
    spelled = [_spelled(message, kind) for message in messages]
    if not tools:
        return spelled
    first = spelled[0] if spelled[0]["role"] == "system" else None
    said = f"{first['content']}\n\n" if first else ""
    return [{"role": "system", "content": said + _introduction(tools, kind)}, *spelled[1 if first else 0 :]]


def _introduction(tools: Sequence[dict[str, Any]], kind: KnownFormat) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return f"You may call these functions:\n{listed}\nTo call one, write {_HOW[kind]}."


def _spelled(message: Message, kind: KnownFormat) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [_call(call["function"], kind) for call in message.get("tool_calls", ())]
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**plain, "content": "\n".join([*filter(None, [message["content"]]), *calls])}


def _call(function: dict[str, Any], kind: KnownFormat) -> str:
    name, arguments = function["name"], function["arguments"]
    if kind == "llama3":
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)
    return OPEN + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + CLOSE
