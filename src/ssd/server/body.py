"""What every body keeps to, whatever it asks for: known fields, sizes, and text that is text.

A body may be millions of small things; what is looked at before it is refused is bounded, since everybody
else waits meanwhile.
"""

import json
import re
from collections.abc import Callable, Coroutine
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


class BoundedRoute(APIRoute):
    """Refuses a body of too many values before they are made: nobody else is served meanwhile."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            num_values = (await request.body()).count(b",")
            if num_values > _MOST_VALUES:
                message = f"the body has more than {_MOST_VALUES} values: send it in parts"
                raise ApiError(400, message, code="too_many_values")
            response = await handle(request)
            # What was in it is in the answer's hands. An answer may take long, and a body be large.
            for cached in ("_body", "_json"):
                vars(request).pop(cached, None)
            return response

        return bounded


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
