"""Grammars that callers are waiting for, by ticket. Belongs to one event loop; does not know sockets."""

import asyncio
import time
from collections.abc import Callable
from itertools import count

from ssd.sampling import Grammar
from ssd.sampling.constraint import GrammarBusyError, GrammarError
from ssd.worker.compile_queue import PREPARE_SECONDS
from ssd.worker.messages import Prepare, Prepared, encode


class Preparations:
    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._tickets = count()
        self._waiting: dict[int, asyncio.Future[Prepared]] = {}

    async def ask(self, grammar: Grammar) -> None:
        """Waits until the engine has compiled the grammar.

        GrammarError: it cannot be used. GrammarBusyError: not now.
        """
        ticket = next(self._tickets)
        prepared = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._send(encode([Prepare(ticket, grammar, time.monotonic())]))
            said = await asyncio.wait_for(prepared, PREPARE_SECONDS)
        except TimeoutError:
            raise GrammarBusyError(
                f"the grammar was not compiled within {PREPARE_SECONDS:.0f} s: simplify it, or try again"
            ) from None
        finally:
            del self._waiting[ticket]
        if said.refusal:
            raise (GrammarError if said.is_final else GrammarBusyError)(said.refusal)

    def take(self, prepared: Prepared) -> None:
        waiting = self._waiting.get(prepared.ticket)
        if waiting is not None and not waiting.done():
            waiting.set_result(prepared)

    def fail(self, error: Callable[[], Exception]) -> None:
        """Ends all waits with an error: the engine is dead."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error())
