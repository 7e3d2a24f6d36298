"""What goes wrong inside is not the caller's to mend, nor to read."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ssd.config.server import ServerConfig
from ssd.errors import InvalidRequestError
from ssd.server.answering import send_events
from ssd.server.answers import Answer
from ssd.server.app import build_app
from ssd.server.completions import CompletionJob
from ssd.server.gate import Gate
from ssd.server.metrics import Metrics
from ssd.server.serving import Serving

SECRET = "block 7 is already free"


def answer_to(error: Exception, monkeypatch: pytest.MonkeyPatch) -> httpx.Response:
    """Of a server whose work on a request fails so."""

    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(CompletionJob, "make", fail)
    engine: Any = SimpleNamespace(
        state="ready", config=SimpleNamespace(model="m", max_num_seqs=1), max_model_len=9
    )

    async def ask() -> httpx.Response:
        app = build_app(Serving(engine, ServerConfig(), Metrics(), Gate(engine, max_queue=1)))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/completions", json={"prompt": "x"})

    return asyncio.run(ask())


def test_an_inner_error_is_no_fault_of_the_callers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any ValueError used to be a 400 that nobody logged."""
    with caplog.at_level(logging.ERROR):
        answer = answer_to(ValueError(SECRET), monkeypatch)
    assert answer.status_code == 500
    assert SECRET not in answer.text
    assert SECRET in caplog.text


def test_what_is_meant_for_callers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = answer_to(InvalidRequestError("top_p=2 is refused: use less"), monkeypatch)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_p")


def stream_of(error: Exception) -> str:
    """Of a server whose work fails so after the first event."""

    async def events() -> AsyncGenerator[Answer, None]:
        yield Answer()
        raise error

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(send_events(send, events(), keep_alive_seconds=60))
    return b"".join(message.get("body", b"") for message in sent).decode()


@pytest.mark.parametrize(("kind", "is_told"), [(ValueError, False), (InvalidRequestError, True)])
def test_so_it_is_in_a_stream(kind: type[Exception], is_told: bool, caplog: pytest.LogCaptureFixture) -> None:
    """There an error is an event."""
    text = stream_of(kind(SECRET))
    assert (SECRET in text) is is_told
    assert (SECRET in caplog.text) is not is_told
    assert text.endswith("[DONE]\n\n")
