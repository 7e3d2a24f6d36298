"""An engine process as its client sees it: sends requests, sorts events by request, watches the process.

Belongs to one event loop. Knows messages and the child process. Does not know prompts or tokenizers.
Unlike a draft, an engine is not restarted: when its process ends, every inbox gets an error with the cause,
as far as it is known.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from itertools import count

from ssd.engine.outputs import Increment, RequestOutput
from ssd.engine.request import Request
from ssd.errors import EngineDeadError, InvalidRequestError
from ssd.processes.child import Child
from ssd.sampling import Grammar
from ssd.sampling.constraint import GrammarBusyError, GrammarError
from ssd.worker.compile_queue import PREPARE_SECONDS
from ssd.worker.engine_sockets import Addresses, ServerSocket
from ssd.worker.loop import HEARTBEAT_SECONDS
from ssd.worker.messages import (
    Abort,
    Add,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Increments,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Shutdown,
    decode_events,
    encode,
)

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_LAST_WORDS_SECONDS = 0.3
"""Time to receive the last messages of a process that has ended."""


class Inbox:
    """Unread increments of one caller, in bounded memory however slow the caller is.

    Unread increments of a sequence are joined into one, so at most the request's output is kept.
    """

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self._pending: dict[int, Increment] = {}
        self._end: RequestOutput | Exception | None = None
        self._on_end = on_end
        """Called when the request has ended, before anything is read."""
        self._news = asyncio.Event()
        self.is_abandoned = False
        """The caller has left, and the request was aborted."""

    def put(self, increment: Increment) -> None:
        earlier = self._pending.get(increment.index)
        self._pending[increment.index] = increment if earlier is None else joined(earlier, increment)
        self._news.set()

    def end(self, how: RequestOutput | Exception) -> None:
        self._end = how
        self._news.set()
        if self._on_end is not None:
            self._on_end()

    async def get(self) -> Increment | RequestOutput:
        """The next increment, or the output once all are read; raises the error that ended the request."""
        while not self._pending:
            if isinstance(self._end, Exception):
                raise self._end
            if self._end is not None:
                return self._end
            self._news.clear()
            await self._news.wait()
        return self._pending.pop(next(iter(self._pending)))


def joined(first: Increment, second: Increment) -> Increment:
    """Two successive increments of one sequence as one."""
    scored = first.logprobs is not None and second.logprobs is not None
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=(first.logprobs or ()) + (second.logprobs or ()) if scored else None,
        origins=first.origins + second.origins,
        trees=first.trees + second.trees,
    )


class Preparations:
    """Grammars that callers are waiting for, by ticket."""

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


class EngineProcess:
    def __init__(
        self, addresses: Addresses, child: Child, on_increment: Callable[[Increment], None] | None = None
    ) -> None:
        """`child` runs `program.py` and has been started. `on_increment` gets every increment."""
        self.child = child
        self.heartbeat: Heartbeat | None = None
        """The latest one."""
        self.ready: Ready | None = None
        self.refusal = ""
        """Why the settings cannot work, if the engine reported that while loading."""
        self._addresses = addresses
        self._on_increment = on_increment
        self._socket = ServerSocket(addresses)
        self._preparations = Preparations(self._socket.send_grammars)
        self._inboxes: dict[str, Inbox] = {}
        self._heard_at = time.monotonic()
        self._failure = ""
        self._loaded = asyncio.Event()
        self._dead = asyncio.Event()
        self._is_closing = False
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    @property
    def is_dead(self) -> bool:
        return self._dead.is_set()

    @property
    def seconds_without_progress(self) -> float:
        """How long work has been waiting, or heartbeats are missing. 0 when idle, infinite once dead."""
        if self.is_dead:
            return float("inf")
        if self.heartbeat is None:
            return 0.0  # Still loading; `_watch` notices if the process dies.
        silent = time.monotonic() - self._heard_at
        late = silent if silent > 2 * HEARTBEAT_SECONDS else 0.0
        return max(self.heartbeat.seconds_without_progress, late)

    async def loaded(self) -> None:
        """Waits until the engine is ready or dead."""
        await self._loaded.wait()

    async def dead(self) -> None:
        await self._dead.wait()

    async def prepare(self, grammar: Grammar) -> None:
        """Has the engine's process compile a grammar while streams go on.

        GrammarError: the grammar cannot be used.
        """
        if self.is_dead:
            raise self.dead_error()
        await self._preparations.ask(grammar)

    async def run(
        self, request: Request, *, on_end: Callable[[], None] | None = None
    ) -> AsyncGenerator[Increment | RequestOutput, None]:
        """Increments, then the output. Leaving early aborts the request."""
        if self.is_dead:
            raise self.dead_error()
        if request.request_id in self._inboxes:
            raise InvalidRequestError(f"request id {request.request_id!r} is already running: choose another")
        frame = encode([Add(request)])  # Fails here, before an inbox exists, if it cannot be encoded.
        inbox = self._inboxes[request.request_id] = Inbox(on_end)
        try:
            self._socket.send(frame)
            while True:
                event = await inbox.get()
                yield event
                if isinstance(event, RequestOutput):
                    return
        finally:
            if self._inboxes.get(request.request_id) is inbox:
                # Keep the inbox until the engine confirms the end, so that its id is not reused before.
                inbox.is_abandoned = True
                self.abort(request.request_id)

    def abort(self, request_id: str) -> None:
        if request_id in self._inboxes and not self._is_closing:
            self._socket.send(encode([Abort(request_id)]))

    async def close(self) -> None:
        if self._is_closing:
            return
        self._socket.send(encode([Shutdown()]))
        self._is_closing = True
        await asyncio.to_thread(self.child.end)
        self._die("")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._addresses.remove()

    def dead_error(self) -> EngineDeadError:
        """One for each caller: raising an exception writes its traceback into it."""
        if not self._failure:
            return EngineDeadError("the engine is closed")
        return EngineDeadError(f"the engine failed: {self._failure}")

    async def _read(self) -> None:
        try:
            while True:
                for event in decode_events(await self._socket.receive()):
                    self._take(event)
        except Exception as error:  # Callers must get an error rather than wait for ever.
            logger.exception("reading events of the engine failed")
            self._die(repr(error))

    def _take(self, event: Event) -> None:
        self._heard_at = time.monotonic()
        match event:
            case Increments(increments):
                for increment in increments:
                    self._put(increment)
            case Finished(output):
                self._end(output.request_id, output)
            case Refused(request_id, reason, is_defect):
                self._end(request_id, RuntimeError(reason) if is_defect else InvalidRequestError(reason))
            case Prepared():
                self._preparations.take(event)
            case Heartbeat():
                self.heartbeat = event
            case Ready():
                self.ready = event
                self._loaded.set()
            case Failed(reason, is_refusal):
                self._failure = reason
                self.refusal = reason if is_refusal else ""

    def _put(self, increment: Increment) -> None:
        if self._on_increment is not None:
            self._on_increment(increment)
        inbox = self._inboxes.get(increment.request_id)
        if inbox is not None and not inbox.is_abandoned:
            inbox.put(increment)

    def _end(self, request_id: str, how: RequestOutput | Exception) -> None:
        inbox = self._inboxes.pop(request_id, None)
        if inbox is not None:
            inbox.end(how)

    async def _watch(self) -> None:
        while self.child.exit_code is None:
            await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        self._die(self._failure or f"its process {self.child.ending}")

    def _die(self, failure: str) -> None:
        if self.is_dead:
            return
        if failure and not self._is_closing:
            logger.error("the engine is dead: %s", failure)
        self._failure = failure
        self._dead.set()
        self._loaded.set()
        for request_id in list(self._inboxes):
            self._end(request_id, self.dead_error())
        self._preparations.fail(self.dead_error)
