"""What every body keeps to, whatever it asks for: known fields, sizes, and text that is text.

A body may be millions of small things; what is looked at before it is refused is bounded, since everybody
else waits meanwhile.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from contextvars import ContextVar
from functools import wraps
from typing import Annotated, Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ssd.sampling.params import MAX_LOGIT_BIAS
from ssd.server.errors import ApiError

_MOST_FIELDS = 100
"""More than any body has."""
_MOST_METADATA = 16
"""OpenAI's limit."""
_MOST_VALUES = 400_000
"""Told by the commas. So many numbers take some 50 ms to read; text with so many is no prompt."""
MOST_OBJECTS = 20_000
"""Objects that are not empty. Checking one takes some microseconds, and of so many a tenth of a second. A
conversation that fills 128,000 tokens has fewer."""
_LARGE_BYTES = 256 << 10
"""From here on reading and checking a body may take more than some milliseconds."""
_BETWEEN = b" \t\r\n\0"
"""What may stand between a brace and a quote; zeros where each character has two or four bytes."""
_MAY_BE_HALF = re.compile(rb"\\u[dD]")

Item = TypeVar("Item")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Int = Annotated[int, Field(ge=-(2**63), lt=2**64)]
"""What fits on the wire to the engine; what makes sense is said elsewhere."""
Listed = Annotated[list[Item], Field(fail_fast=True)]
"""Of wrong items only the first is told."""


def _few(most: int) -> BeforeValidator:
    """Before its entries are looked at: each wrong one would be an error of its own."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(f"it has {len(value)} entries, and at most {most} are taken")
        return value

    return BeforeValidator(check)


Metadata = Annotated[dict[str, str], _few(_MOST_METADATA), Field(max_length=_MOST_METADATA)]
Biases = Annotated[dict[str, float], _few(MAX_LOGIT_BIAS)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > _MOST_FIELDS:
            raise ValueError(f"fields: there are {len(data)}, more than any request has")
        return data


class _LargeBodyQueue:
    """Large bodies are read one at a time, and others are served for as long as each took.

    Reading holds up the event loop, in a thread too: neither the JSON parser nor pydantic lets other threads
    run. So many clients with large bodies have half of the loop's time together.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def enter(self, num_bytes: int) -> ExitStack:
        """To be closed when the body is read, once or more often."""
        found = ExitStack()
        if num_bytes >= _LARGE_BYTES:
            await self._turn.acquire()
            found.callback(self._turn.release)
            try:
                await asyncio.sleep(self._free_at - time.monotonic())
            except BaseException:
                found.close()
                raise
            found.callback(self._note, time.thread_time())
        return found

    def _note(self, began: float) -> None:
        self._free_at = time.monotonic() + time.thread_time() - began


_LARGE_BODIES = _LargeBodyQueue()
_READING: ContextVar[ExitStack] = ContextVar("reading")


class BoundedRoute(APIRoute):
    """Refuses a body of too many values before they are made: nobody else is served meanwhile."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _when_read(endpoint), **options)

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            body = await request.body()
            with await _LARGE_BODIES.enter(len(body)) as reading:
                _READING.set(reading)
                _check_counts(body)
                response = await handle(request)
            # What was in it is in the answer's hands. An answer may take long, and a body be large.
            for cached in ("_body", "_json"):
                vars(request).pop(cached, None)
            return response

        return bounded


def _when_read(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint: the next body may be read when it begins, whatever it waits for."""

    @wraps(endpoint)
    async def begin(**values: Any) -> Any:
        _READING.get().close()
        return await endpoint(**values)

    return begin


def _check_counts(body: bytes) -> None:
    if body.count(b",") > _MOST_VALUES:
        message = f"the body has more than {_MOST_VALUES} values: send it in parts"
        raise ApiError(400, message, code="too_many_values")
    # In a text a quote has a backslash before it, so a brace before a bare one begins an object. Braces alone
    # are counted first: most bodies have few, and need no second look.
    if body.count(b"{") > MOST_OBJECTS and body.translate(None, _BETWEEN).count(b'{"') > MOST_OBJECTS:
        message = (
            f"the body has more than {MOST_OBJECTS} objects (messages, parts, tool calls): leave some out"
        )
        raise ApiError(400, message, code="too_many_objects")


async def check_text(request: Request) -> None:
    """JSON can spell half a character ("\\ud800"); no tokenizer, log or answer can."""
    if not _may_hold_halves(await request.body()):
        return
    try:
        data = await request.json()
    except ValueError:
        return  # No JSON: that is said elsewhere.
    for name, value in data.items() if isinstance(data, dict) else ():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            said = ascii(name)[1:-1]
            raise ApiError(400, f"{said} holds text that is not valid Unicode", param=said) from None


def _may_hold_halves(body: bytes) -> bool:
    """Writing a body out again to find them takes as long as reading it: most hold no sign of one."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return True  # Python reads other encodings too, and halves that are spelled out.
    return b"\0" in body or _MAY_BE_HALF.search(body) is not None
