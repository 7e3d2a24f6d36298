"""Finds tool calls in streamed text, and writes tools as text for chat templates without tool support.

Knows two formats: `<tool_call>{json}</tool_call>` (Hermes, Qwen) and an answer that is a JSON object with the
name of a tool and its parameters (Llama 3). A call is returned when it is complete; invalid calls remain
content. Does not force calls: grammars.py does.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, Literal

from ssd.config.server import ToolFormat
from ssd.engine.prompts import Message
from ssd.server.pieces import Call, Content, Piece, Splitter, length_held

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"

KnownFormat = Literal["hermes", "llama3"]
_HOW: dict[KnownFormat, str] = {
    "hermes": f'{OPEN}{{"name": …, "arguments": {{…}}}}{CLOSE}',
    "llama3": '{"name": …, "parameters": {…}}, and nothing else',
}
"""How the model is told to write a call."""


def tool_format(template: object, wanted: ToolFormat) -> KnownFormat | None:
    """The format of tool calls, from the setting or the chat template; None: calls are not supported."""
    if wanted == "none":
        return None
    if wanted != "auto":
        return wanted
    if not isinstance(template, str):
        return None
    if OPEN in template:
        return "hermes"
    return "llama3" if "tools" in template and '"parameters"' in template else None


def tool_splitter(kind: KnownFormat, names: Collection[str]) -> Splitter:
    """`names`: names of the request's tools."""
    return HermesCalls() if kind == "hermes" else Llama3Calls(names)


class HermesCalls:
    def __init__(self) -> None:
        self._held = ""
        self._is_inside = False
        self._has_called = False

    def add(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while True:
            found = self._read_inside() if self._is_inside else self._read_outside()
            pieces += found or []
            if found is None:
                return pieces

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._is_inside:
            call = parse_call(held)  # The model may have ended the answer instead of writing the end marker.
            return [call] if call else [Content(OPEN + held)]
        # White space around calls is dropped; that of a plain answer is kept.
        return [Content(held)] if held.strip() or (held and not self._has_called) else []

    def _read_outside(self) -> list[Piece] | None:
        """Pieces before the next call; None: more text is needed."""
        start = self._held.find(OPEN)
        if start < 0:
            return self._release(len(self._held) - length_held(self._held, OPEN)) or None
        pieces = self._release(len(self._held[:start].rstrip()))
        self._held = self._held[self._held.find(OPEN) + len(OPEN) :]
        self._is_inside = True
        return pieces

    def _read_inside(self) -> list[Piece] | None:
        end = self._held.find(CLOSE)
        if end < 0:
            return None
        inner, self._held = self._held[:end], self._held[end + len(CLOSE) :]
        self._is_inside = False
        call = parse_call(inner)
        self._has_called = self._has_called or call is not None
        return [call] if call else [Content(OPEN + inner + CLOSE)]

    def _release(self, length: int) -> list[Piece]:
        text, self._held = self._held[:length], self._held[length:]
        return [Content(text)] if text else []


class Llama3Calls:
    """The whole answer is either calls, separated by semicolons, or content.

    Calls have no marker. A JSON object is a call if it names a tool and has parameters.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._is_content = False

    def add(self, text: str) -> list[Piece]:
        if not self._is_content:
            self._held += text
            start = self._held.lstrip()
            may_be_call = start.startswith(("{", _PYTHON_TAG)) or _PYTHON_TAG.startswith(start)
            if may_be_call:
                return []
            self._is_content, text = True, self._held
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        if self._is_content or not self._held.strip():
            return []
        values = _parse_all(self._held.strip().removeprefix(_PYTHON_TAG))
        calls = [call for call in map(self._call, values) if call is not None]
        return list(calls) if calls and len(calls) == len(values) else [Content(self._held)]

    def _call(self, value: Any) -> Call | None:
        call = _as_call(value)
        is_known = call is not None and call.name in self._names
        return call if is_known and ("parameters" in value or "arguments" in value) else None


def _parse_all(text: str) -> list[Any]:
    """Consecutive JSON values; empty if the text contains anything else."""
    decoder, values = json.JSONDecoder(), []
    text = text.strip()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (json.JSONDecodeError, RecursionError):
            return []
        values.append(value)
        text = text[end:].strip().removeprefix(";").strip()
    return values


def parse_call(text: str) -> Call | None:
    values = _parse_all(text)
    return _as_call(values[0]) if len(values) == 1 else None


def _as_call(value: Any) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return Call(value["name"], arguments)
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def knows_tools(template: object) -> bool:
    """Whether a template supports tools. A set of named templates is assumed to have one for tools."""
    return not isinstance(template, str) or "tools" in template


def spelled_out(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]], kind: KnownFormat
) -> list[Message]:
    """The conversation with tools described in its system message, and calls and results as text.

    For templates without tool support, which drop them silently.
    """
    spelled = [_spelled(message, kind) for message in messages]
    if not tools:
        return spelled
    first = spelled[0] if spelled[0]["role"] == "system" else None
    before = f"{first['content']}\n\n" if first else ""
    return [{"role": "system", "content": before + _introduction(tools, kind)}, *spelled[1 if first else 0 :]]


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
