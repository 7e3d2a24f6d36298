"""`AsyncLLM`: the engine for servers. Many requests at once, streamed as they grow.

Knows one thread, which owns the engine, and any number of asyncio callers. Callers send typed commands and
receive increments; only the engine thread touches the engine, and it publishes what others may read.
Requests are made, and grammars compiled, by the RequestFactory in the caller or a helper thread. When the
engine thread ends, every caller gets an error, with the cause if there is one.
"""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from ssd.config import EngineConfig
from ssd.engine.build import Engine, build_engine
from ssd.engine.core import StepOutput
from ssd.engine.outputs import Increment, RequestOutput
from ssd.engine.prompts import Message, Prompt
from ssd.engine.request import Request
from ssd.sampling import SamplingParams


class EngineDeadError(RuntimeError):
    """The engine stopped; the failure that stopped it, if any, is chained."""


_LONG_TEXT = 10_000
"""Characters. Tokenising a longer text would block the event loop for milliseconds."""

Event = Increment | RequestOutput | Exception


@dataclass(frozen=True, slots=True)
class _Subscriber:
    """Where a request's events go: a queue on its caller's event loop.

    Each submission has its own, so it also distinguishes requests with the same id.
    """

    loop: asyncio.AbstractEventLoop
    events: "asyncio.Queue[Event]"

    def send(self, event: Event) -> None:
        # The caller's event loop may be closed.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


@dataclass(frozen=True, slots=True)
class _Add:
    request: Request
    subscriber: _Subscriber


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str
    owner: _Subscriber | None = None
    """Abort only if this subscriber's request has the id; None: any request with the id."""


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = _Add | _Abort | _Stop


class AsyncLLM:
    def __init__(self, model: str, *, show_progress: bool = False, **settings: Any) -> None:
        config = EngineConfig.from_settings(str(model), settings)
        self._engine: Engine = build_engine(config, show_progress=show_progress)
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._running: dict[str, _Subscriber] = {}  # Only the engine thread uses it.
        # Published by the engine thread: when its current iteration began; None when idle.
        self._busy_since: float | None = None
        # No request enters the queue once the engine thread has set `_is_over`.
        self._end_lock = threading.Lock()
        self._is_over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="ssd-engine", daemon=True)
        self._thread.start()

    @property
    def tokenizer(self) -> Any:
        return self._engine.requests.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._engine.loaded.max_model_len

    @property
    def seconds_without_progress(self) -> float:
        """How long work has been waiting for the engine; 0 when idle. Infinite once it is dead."""
        if self._is_over:
            return float("inf")
        busy_since = self._busy_since
        return 0.0 if busy_since is None else time.monotonic() - busy_since

    async def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> AsyncGenerator[Increment, None]:
        """Increments as they are decided. Closing it early (see contextlib.aclosing) aborts the request."""
        async with aclosing(self._events(prompt, sampling_params, request_id)) as events:
            async for event in events:
                if isinstance(event, Increment):
                    yield event

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> RequestOutput:
        """The complete output. Cancelling the task aborts the request."""
        async with aclosing(self._events(prompt, sampling_params, request_id)) as events:
            async for event in events:
                if isinstance(event, RequestOutput):
                    return event
        raise EngineDeadError("the request ended without an output")

    def chat_prompt(self, messages: list[Message]) -> list[int]:
        """Token ids of a conversation, to pass to `stream` or `generate`."""
        return self._engine.requests.chat_prompt(messages)

    def abort(self, request_id: str) -> None:
        """Ends the request with this id; its stream closes with finish_reason `abort`."""
        self._commands.put(_Abort(request_id))

    def close(self) -> None:
        """Stops the engine; requests that have not ended yet end with EngineDeadError."""
        self._commands.put(_Stop())
        self._thread.join()

    async def _events(
        self, prompt: Prompt, params: SamplingParams | None, request_id: str | None
    ) -> AsyncGenerator[Event, None]:
        request = await self._request(prompt, params or SamplingParams(), request_id)
        subscriber = _Subscriber(asyncio.get_running_loop(), asyncio.Queue())
        self._submit(_Add(request, subscriber))
        num_open = request.params.n
        try:
            while True:
                event = await subscriber.events.get()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Increment) and event.finish_reason is not None:
                    num_open -= 1
                yield event
                if isinstance(event, RequestOutput):
                    return
        finally:
            # After the last finish_reason there is nothing to abort.
            if num_open:
                self._commands.put(_Abort(request.request_id, subscriber))

    async def _request(self, prompt: Prompt, params: SamplingParams, request_id: str | None) -> Request:
        make = self._engine.requests.request
        if getattr(params, "grammar", None) or (isinstance(prompt, str) and len(prompt) > _LONG_TEXT):
            return await asyncio.to_thread(make, prompt, params, request_id)
        return make(prompt, params, request_id)

    def _submit(self, command: _Add) -> None:
        """Queues a request. It is always answered, with an error if the engine ends."""
        with self._end_lock:
            if self._is_over:
                raise self._dead_error()
            self._commands.put(command)

    def _dead_error(self) -> EngineDeadError:
        """One for each caller: raising an exception writes its traceback into it."""
        if self._failure is None:
            return EngineDeadError("the engine is closed")
        error = EngineDeadError(f"the engine failed: {self._failure!r}")
        error.__cause__ = self._failure
        return error

    def _serve(self) -> None:
        """The engine thread: take commands, step, deliver; blocks only when idle."""
        failure: BaseException | None = None
        try:
            while self._take_commands():
                self._deliver(self._engine.core.step())
        except BaseException as error:  # Callers must get an error rather than wait for ever.
            failure = error
        with suppress(Exception):  # Deliver outputs that are complete; other callers get an error below.
            self._deliver(self._engine.core.flush())
        try:
            self._engine.close()
        except BaseException as error:
            failure = failure or error
        with self._end_lock:
            self._failure, self._is_over = failure, True
        for subscriber in self._unanswered():
            subscriber.send(self._dead_error())

    def _unanswered(self) -> Iterator[_Subscriber]:
        yield from self._running.values()
        with suppress(queue.Empty):
            while True:
                command = self._commands.get_nowait()
                if isinstance(command, _Add):
                    yield command.subscriber

    def _take_commands(self) -> bool:
        """Executes queued commands; blocks until there is work. False: stop."""
        while True:
            has_work = self._engine.core.has_work
            self._busy_since = time.monotonic() if has_work else None
            try:
                command = self._commands.get(block=not has_work)
            except queue.Empty:
                return True
            if isinstance(command, _Stop):
                return False
            if isinstance(command, _Add):
                self._add(command)
            else:
                self._abort(command)

    def _add(self, command: _Add) -> None:
        try:
            self._engine.core.add(command.request)
        except ValueError as error:
            command.subscriber.send(error)
        except BaseException:
            # The engine is about to end: requeue the command, so that `_unanswered` finds it.
            self._commands.put(command)
            raise
        else:
            self._running[command.request.request_id] = command.subscriber

    def _abort(self, command: _Abort) -> None:
        running = self._running.get(command.request_id)
        # A late abort must not end another request: a refused or finished request does not own its id.
        if running is not None and (command.owner is None or command.owner is running):
            self._deliver(self._engine.core.abort(command.request_id))

    def _deliver(self, output: StepOutput) -> None:
        for increment in output.increments:
            self._running[increment.request_id].send(increment)
        for finished in output.finished:
            self._running.pop(finished.request_id).send(finished)
