"""`AsyncLLM`: the engine for servers. Many requests at once, streamed as they grow.

Knows one thread, which owns the engine, and any number of asyncio callers. Callers send
typed commands and receive increments; nothing of the engine is touched from outside its
thread. If that thread fails, every caller is told why.
"""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
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
    """The engine stopped; its cause is chained."""


Event = Increment | RequestOutput | Exception


@dataclass(frozen=True, slots=True)
class _Subscriber:
    """Where a request's events go: a queue on its caller's event loop."""

    loop: asyncio.AbstractEventLoop
    events: "asyncio.Queue[Event]"

    def send(self, event: Event) -> None:
        # Once the caller's loop is closed, nobody is left to tell.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


@dataclass(frozen=True, slots=True)
class _Add:
    request: Request
    subscriber: _Subscriber


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = _Add | _Abort | _Stop


class AsyncLLM:
    def __init__(self, model: str, *, show_progress: bool = False, **settings: Any) -> None:
        config = EngineConfig.from_settings(str(model), settings)
        self._engine: Engine = build_engine(config, show_progress=show_progress)
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._subscribers: dict[str, _Subscriber] = {}
        self._failure: BaseException | None = None
        self._last_progress = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="ssd-engine", daemon=True)
        self._thread.start()

    @property
    def tokenizer(self) -> Any:
        return self._engine.requests.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    @property
    def seconds_without_progress(self) -> float:
        """How long work has been waiting for the engine; 0 when idle. Infinite once it is dead."""
        if self._failure is not None or not self._thread.is_alive():
            return float("inf")
        return time.monotonic() - self._last_progress if self._engine.core.has_work else 0.0

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> AsyncGenerator[Increment, None]:
        """Increments as they are decided. Leaving the loop early aborts the request."""
        async for event in self._events(prompt, params, request_id):
            if isinstance(event, Increment):
                yield event

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> RequestOutput:
        """The complete output. Cancelling the task aborts the request."""
        async for event in self._events(prompt, params, request_id):
            if isinstance(event, RequestOutput):
                return event
        raise EngineDeadError("the request ended without an output")

    def chat_prompt(self, messages: list[Message]) -> list[int]:
        """Token ids of a conversation, to pass to `stream` or `generate`."""
        return self._engine.requests.chat_prompt(messages)

    def abort(self, request_id: str) -> None:
        """Ends a request; its stream closes with finish_reason `abort`."""
        self._commands.put(_Abort(request_id))

    def close(self) -> None:
        """Stops the engine; running requests end with EngineDeadError."""
        self._commands.put(_Stop())
        self._thread.join()

    async def _events(
        self, prompt: Prompt, params: SamplingParams | None, request_id: str | None
    ) -> AsyncGenerator[Event, None]:
        self._check_alive()
        request = self._engine.requests.request(prompt, params or SamplingParams(), request_id)
        subscriber = _Subscriber(asyncio.get_running_loop(), asyncio.Queue())
        self._commands.put(_Add(request, subscriber))
        is_done = False
        try:
            while not is_done:
                event = await subscriber.events.get()
                is_done = not isinstance(event, Increment)
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            if not is_done:
                self.abort(request.request_id)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineDeadError("the engine has failed") from self._failure
        if not self._thread.is_alive():
            raise EngineDeadError("the engine is closed")

    def _serve(self) -> None:
        """The engine thread: take commands, step, deliver; sleep only without work."""
        try:
            while self._take_commands():
                if self._engine.core.has_work:
                    self._deliver(self._engine.core.step())
                    self._last_progress = time.monotonic()
            failure: Exception = EngineDeadError("the engine was closed")
        except Exception as error:  # Whatever it is, callers must hear of it rather than wait.
            self._failure = error
            failure = EngineDeadError(f"the engine failed: {error!r}")
        for subscriber in self._subscribers.values():
            subscriber.send(failure)

    def _take_commands(self) -> bool:
        """Carries out what has been asked; blocks while there is nothing else to do. False: stop."""
        while True:
            try:
                command = self._commands.get(block=not self._engine.core.has_work)
            except queue.Empty:
                return True
            if isinstance(command, _Stop):
                return False
            if isinstance(command, _Add):
                self._add(command)
            else:
                self._deliver(self._engine.core.abort(command.request_id))

    def _add(self, command: _Add) -> None:
        try:
            if not self._engine.core.has_work:
                self._last_progress = time.monotonic()
            self._engine.core.add(command.request)
        except ValueError as error:
            command.subscriber.send(error)
        else:
            self._subscribers[command.request.request_id] = command.subscriber

    def _deliver(self, output: StepOutput) -> None:
        for increment in output.increments:
            self._subscribers[increment.request_id].send(increment)
        for finished in output.finished:
            self._subscribers.pop(finished.request_id).send(finished)
