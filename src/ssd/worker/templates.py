"""The server's side of the process that renders chat templates. Belongs to one event loop."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from ssd.engine.prompts import Message
from ssd.worker.forking import ForkingProcess
from ssd.worker.template_program import NO_NUMBER, Conversation, Rendered

_NUM_CHANNELS = 2
"""Conversations rendered at once: a slow one leaves the other channel free."""
_LONG_BYTES = 64 << 10
"""Size from which a conversation counts as long. Long ones together use one channel at most."""
_MOST_WAITING = 64
"""Limit for waiting conversations, of the short ones and of the long ones."""
_FAILED = Rendered(refusal="it failed on these messages")


class TemplateError(Exception):
    """The chat template cannot render these messages."""


class TemplatesBusyError(Exception):
    """Too many conversations are waiting to be rendered."""


class Templates:
    def __init__(self) -> None:
        self._process = ForkingProcess(
            "ssd.worker.template_program", "the process that renders chat templates", b"", _NUM_CHANNELS
        )
        self._numbers = count()
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for channel in range(_NUM_CHANNELS):
            self._free.put_nowait(channel)
        self._long = asyncio.Semaphore(1)
        self._num_waiting = {True: 0, False: 0}
        """Keyed by whether they are long."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Blocks. RuntimeError: the process does not start."""
        self._process.wait_until_ready()

    async def render(self, tokenizer: Any, messages: Sequence[Message], options: dict[str, Any]) -> str:
        """A conversation rendered by the tokenizer's template.

        TemplateError: it cannot be rendered. TemplatesBusyError: try again later.
        """
        template = tokenizer.get_chat_template(None, options.get("tools"))
        variables = {**{name: str(each) for name, each in tokenizer.special_tokens_map.items()}, **options}
        try:
            number, copied = next(self._numbers), [dict(each) for each in messages]
            line = msgspec.json.encode(Conversation(number, template, copied, variables))
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(str(error)) from error
        rendered = await self._rendered(line, number)
        if rendered.refusal is not None:
            raise TemplateError(rendered.refusal)
        return rendered.text

    async def _rendered(self, line: bytes, number: int) -> Rendered:
        is_long = len(line) >= _LONG_BYTES
        channel = await self._channel(is_long=is_long)
        asking = asyncio.ensure_future(asyncio.to_thread(self._ask, channel, line, number))
        # The channel is busy until it has answered, even if the caller was cancelled.
        asking.add_done_callback(lambda _: self._leave(channel, is_long=is_long))
        return await asyncio.shield(asking)

    async def _channel(self, *, is_long: bool) -> int:
        if self._num_waiting[is_long] >= _MOST_WAITING:
            raise TemplatesBusyError("many conversations are waiting for the chat template: try again soon")
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

    def _leave(self, channel: int, *, is_long: bool) -> None:
        self._free.put_nowait(channel)
        if is_long:
            self._long.release()

    def _ask(self, channel: int, line: bytes, number: int) -> Rendered:
        for _ in range(2):
            said = self._process.ask(channel, line)
            rendered = _FAILED if said is None else msgspec.json.decode(said, type=Rendered)
            if rendered.number in (number, NO_NUMBER):
                return rendered
            # The fork was killed between two conversations: the channel holds another one's answer.
            self._process.restart()
        return _FAILED

    def end(self) -> None:
        self._process.end()
