"""Checks that apply to every request body: known fields, number of values, valid Unicode.

Parsing a body blocks the event loop. So the work done before a body is refused is bounded.
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
"""More fields than any valid body has."""
_MOST_METADATA = 16
"""OpenAI's limit."""
_MOST_VALUES = 400_000
"""Estimated by counting commas. Parsing this many numbers takes about 50 ms; no prompt has as many commas."""
MOST_OBJECTS = 20_000
"""Limit on non-empty JSON objects. Validating one takes a few microseconds, this many about 0.1 s. A
conversation of 128,000 tokens has fewer."""
_LARGE_BYTES = 256 << 10
"""Parsing and validating a body of this size may take more than a few milliseconds."""
_BETWEEN = b" \t\r\n\0"
"""Bytes that may stand between a brace and a quote; NUL bytes occur in UTF-16 and UTF-32."""
_MAY_BE_HALF = re.compile(rb"\\u[dD]")

Item = TypeVar("Item")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Int = Annotated[int, Field(ge=-(2**63), lt=2**64)]
"""Range of the protocol to the engine; the valid range of each field is checked elsewhere."""
Listed = Annotated[list[Item], Field(fail_fast=True)]
"""A list in which validation stops at the first invalid item."""


def _few(most: int) -> BeforeValidator:
    """Check the number of entries first: pydantic would report an error for each invalid entry."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(f"it has {len(value)} entries, and at most {most} are allowed")
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
    """Parses large bodies one at a time, and pauses after each one for as long as parsing took.

    Neither the JSON parser nor pydantic releases the GIL, so parsing blocks the event loop even in a thread.
    The pause limits large bodies to half of the event loop's time, however many clients send them.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def enter(self, num_bytes: int) -> ExitStack:
        """Wait for a turn. The caller closes the result when the body is parsed, once or more often."""
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
    """A route that refuses a body with too many values before parsing it."""

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
            # The answer has copied what it needs. Free the body: answers may take long, and bodies may be
            # large.
            for cached in ("_body", "_json"):
                vars(request).pop(cached, None)
            return response

        return bounded


def _when_read(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an endpoint so that the next large body may be parsed as soon as the endpoint starts."""

    @wraps(endpoint)
    async def begin(**values: Any) -> Any:
        _READING.get().close()
        return await endpoint(**values)

    return begin


def _check_counts(body: bytes) -> None:
    if body.count(b",") > _MOST_VALUES:
        message = f"the body has more than {_MOST_VALUES} values: send it in parts"
        raise ApiError(400, message, code="too_many_values")
    # Within a JSON string a quote is escaped, so a brace followed by a bare quote begins an object. Counting
    # braces is cheaper and is enough for most bodies.
    if body.count(b"{") > MOST_OBJECTS and body.translate(None, _BETWEEN).count(b'{"') > MOST_OBJECTS:
        message = (
            f"the body has more than {MOST_OBJECTS} objects (messages, parts, tool calls): leave some out"
        )
        raise ApiError(400, message, code="too_many_objects")


async def check_text(request: Request) -> None:
    """Refuse lone surrogates ("\\ud800"): JSON can contain them, but they cannot be encoded as UTF-8."""
    if not _may_hold_halves(await request.body()):
        return
    try:
        data = await request.json()
    except ValueError:
        return  # Invalid JSON is reported by the route itself.
    for name, value in data.items() if isinstance(data, dict) else ():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            shown = ascii(name)[1:-1]
            raise ApiError(400, f"{shown} holds text that is not valid Unicode", param=shown) from None


def _may_hold_halves(body: bytes) -> bool:
    """A cheap test: looking for surrogates takes as long as parsing the body, and few bodies have any."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return True  # The JSON parser also accepts UTF-16, UTF-32 and encoded surrogates.
    return b"\0" in body or _MAY_BE_HALF.search(body) is not None
