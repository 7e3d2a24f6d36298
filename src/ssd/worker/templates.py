"""The server's side of the process that renders chat templates. Lives on one event loop."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from ssd.engine.prompts import Message
from ssd.worker.forking import ForkingProcess
from ssd.worker.template_program import NO_NUMBER, Conversation, Rendered

_NUM_LINKS = 2
"""Conversations at once: one that takes as long as it may leaves the other link to the rest."""
_LONG_BYTES = 64 << 10
"""From here on a conversation may take long to render: such ones have one link at most."""
_MOST_WAITING = 64
"""Beyond those that are rendered: short ones, and long ones."""
_FAILED = Rendered(refusal="it failed on these messages")


class TemplateError(Exception):
    """A chat template makes no text of these messages."""


class TemplatesBusyError(Exception):
    """Too many conversations wait to be rendered."""


class Templates:
    def __init__(self) -> None:
        self._process = ForkingProcess(
            "ssd.worker.template_program", "the process that renders chat templates", b"", _NUM_LINKS
        )
        self._numbers = count()
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for link in range(_NUM_LINKS):
            self._free.put_nowait(link)
        self._long = asyncio.Semaphore(1)
        self._num_waiting = {True: 0, False: 0}
        """By whether they are long."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """In a thread. RuntimeError: it cannot be had."""
        self._process.wait_until_ready()

    async def render(self, tokenizer: Any, messages: Sequence[Message], options: dict[str, Any]) -> str:
        """The text of a conversation, by the tokenizer's template. TemplateError: there is none.
        TemplatesBusyError: there may be one later."""
        template = tokenizer.get_chat_template(None, options.get("tools"))
        told = {**{name: str(each) for name, each in tokenizer.special_tokens_map.items()}, **options}
        try:
            number, copied = next(self._numbers), [dict(each) for each in messages]
            line = msgspec.json.encode(Conversation(number, template, copied, told))
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(str(error)) from error
        rendered = await self._rendered(line, number)
        if rendered.refusal is not None:
            raise TemplateError(rendered.refusal)
        return rendered.text

    async def _rendered(self, line: bytes, number: int) -> Rendered:
        is_long = len(line) >= _LONG_BYTES
        link = await self._link(is_long=is_long)
        asking = asyncio.ensure_future(asyncio.to_thread(self._ask, link, line, number))
        # The link is free once it has answered, also where nobody waits for the answer any more.
        asking.add_done_callback(lambda _: self._leave(link, is_long=is_long))
        return await asyncio.shield(asking)

    async def _link(self, *, is_long: bool) -> int:
        if self._num_waiting[is_long] >= _MOST_WAITING:
            raise TemplatesBusyError("many conversations wait for the chat template: try again soon")
        self._num_waiting[is_long] += 1
        try:
            if is_long:
                await self._long.acquire()
            try:
                return await self._free.get()
            except BaseException:
                if is_long:
                    self._long.release()
                raise
        finally:
            self._num_waiting[is_long] -= 1

    def _leave(self, link: int, *, is_long: bool) -> None:
        self._free.put_nowait(link)
        if is_long:
            self._long.release()

    def _ask(self, link: int, line: bytes, number: int) -> Rendered:
        for _ in range(2):
            said = self._process.ask(link, line)
            rendered = _FAILED if said is None else msgspec.json.decode(said, type=Rendered)
            if rendered.number in (number, NO_NUMBER):
                return rendered
            # Somebody ended its fork between two conversations: what is on the link answers another one.
            self._process.restart()
        return _FAILED

    def end(self) -> None:
        self._process.end()
