"""Chat templates are programs: what they take is bounded, and what they make is what the tokenizer makes."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ssd.worker.template_program import Rendered
from ssd.worker.templates import TemplateError, Templates, TemplatesBusyError
from tests.alive import is_alive
from tests.server.process import children_of, until
from tests.tiny import tiny_tokenizer

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory and children are read from /proc"
)
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hi", "tool_calls": None}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def tokenizer_of(template: str) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    found = Templates()
    found.wait_until_ready()
    yield found
    found.end()


def rendered(templates: Templates, template: str, **options: Any) -> str:
    async def run() -> str:
        return await templates.render(tokenizer_of(template), HELLO, options)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("template", "options"),
    [
        (tiny_tokenizer().chat_template, {"add_generation_prompt": True}),
        ("{{ bos_token }}{{ messages[0].content }}{{ tools | tojson }}", {"tools": [TOOL]}),
        ("{% for m in messages %}{{ m.content }}!{% endfor %}", {"continue_final_message": True}),
        ("{{ enable_thinking }}{{ 'tool_calls' in messages[0] }}", {"enable_thinking": False}),
    ],
)
def test_the_text_is_the_tokenizers(templates: Templates, template: str, options: dict[str, Any]) -> None:
    own = tokenizer_of(template).apply_chat_template(HELLO, tokenize=False, **options)
    assert rendered(templates, template, **options) == own


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (LOOP, "more than 2 s"),
        ("{{ 9 ** (9 ** 9) }}", "more than 2 s"),  # One operation: nothing in its process could end it.
        pytest.param("{{ ('x' * 10 ** 9) | length }}", "512 MB", marks=linux),
        ("{{ raise_exception('no system messages') }}", "no system messages"),
        ("{{ messages[9].content }}", "no element"),
    ],
)
def test_what_takes_too_much_is_refused_and_others_go_on(
    templates: Templates, template: str, reason: str
) -> None:
    async def both() -> None:
        bad = asyncio.ensure_future(templates.render(tokenizer_of(template), HELLO, {}))
        good = [
            await templates.render(tokenizer_of("{{ messages[0].content }}"), HELLO, {}) for _ in range(3)
        ]
        assert good == ["Hi"] * 3
        with pytest.raises(TemplateError, match=reason):
            await bad

    asyncio.run(both())


@linux
def test_a_process_that_is_gone_is_started_again(templates: Templates) -> None:
    before = templates.pid
    for each in (before, *children_of(before)):
        os.kill(each, signal.SIGKILL)
    assert rendered(templates, "{{ messages[0].content }}") == "Hi"
    assert templates.pid != before


@linux
def test_no_answer_is_taken_for_another(templates: Templates) -> None:
    """A fork that is ended while nobody asks makes its link say something unasked; everybody still gets their
    own text, or is told that there is none."""
    for each in children_of(templates.pid):
        os.kill(each, signal.SIGKILL)
    found: list[str | None] = []
    for number in range(4):
        try:
            found.append(rendered(templates, f"text {number}"))
        except TemplateError:
            found.append(None)
    assert all(text in (None, f"text {number}") for number, text in enumerate(found))
    assert found[-1] == "text 3"


class HeldTemplates(Templates):
    """Without a process: a long conversation is rendered until it is told to be done."""

    def __init__(self) -> None:
        super().__init__()
        self._process.end()
        self.may_end = threading.Event()

    def _ask(self, link: int, line: bytes, number: int) -> Rendered:
        if len(line) > len(LONG[0]["content"]):
            self.may_end.wait(60)
        return Rendered(number, "short" if len(line) < len(LONG[0]["content"]) else "long")


LONG: list[dict[str, Any]] = [{"role": "user", "content": "x" * (64 << 10)}]


def test_long_conversations_leave_a_link_to_short_ones_and_have_a_queue_with_an_end() -> None:
    """Two of them at a time took both links, and any number waited before everybody else."""

    async def run(templates: HeldTemplates) -> None:
        tokenizer = tokenizer_of("")
        long = [asyncio.ensure_future(templates.render(tokenizer, LONG, {})) for _ in range(65)]
        await asyncio.sleep(0)
        assert await templates.render(tokenizer, HELLO, {}) == "short"
        with pytest.raises(TemplatesBusyError, match="try again"):
            await templates.render(tokenizer, LONG, {})
        for each in long[1:40]:
            each.cancel()  # Whoever leaves leaves room.
        await asyncio.wait(long[1:40])
        long.append(asyncio.ensure_future(templates.render(tokenizer, LONG, {})))
        assert await templates.render(tokenizer, HELLO, {}) == "short"
        templates.may_end.set()
        assert set(await asyncio.gather(long[0], *long[40:])) == {"long"}

    async def guarded() -> None:
        templates = HeldTemplates()
        try:
            await asyncio.wait_for(run(templates), 20)
        finally:
            templates.may_end.set()

    asyncio.run(guarded())


def test_whoever_asks_when_it_was_ended_starts_nothing() -> None:
    """A thread that waited for an answer found its process gone, and started another one that stayed."""
    found = Templates()
    found.wait_until_ready()
    pid = found.pid
    found.end()
    with pytest.raises(RuntimeError, match="was ended"):
        rendered(found, "text")
    assert found.pid == pid


@linux
def test_its_forks_end_with_it() -> None:
    found = Templates()
    found.wait_until_ready()
    forks = children_of(found.pid)
    assert len(forks) == 2
    found.end()
    until(lambda: not any(map(is_alive, forks)))
