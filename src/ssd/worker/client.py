"""`EngineClient`: AsyncLLM's interface to an engine in another process.

Turns prompts into requests with the tokenizer; the engine sees token ids only. Belongs to one event loop.
Unlike AsyncLLM it is created by `await EngineClient.start(…)`, answers once `await ready()` returns, and
`close` is awaited.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

from ssd.config import EngineConfig
from ssd.config.server import LogFormat
from ssd.engine.async_llm import EngineDeadError
from ssd.engine.outputs import Increment, RequestOutput
from ssd.engine.prompts import Message, Prompt, RequestFactory
from ssd.engine.request import Request
from ssd.models.checkpoint import open_checkpoint
from ssd.sampling import SamplingParams
from ssd.worker.engine_process import EngineProcess
from ssd.worker.messages import Heartbeat
from ssd.worker.templates import Templates

_LONG_TEXT = 10_000
"""Characters. Tokenising a longer text would block the event loop for milliseconds."""

ClientState = Literal["loading", "ready", "dead"]


class EngineClient:
    def __init__(self, config: EngineConfig, process: EngineProcess) -> None:
        self.config = config
        self._process = process
        self._factory: RequestFactory | None = None
        self._templates = Templates()  # Start its process while the engine loads.
        self._preparing = asyncio.create_task(self._prepare())

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        log_level: str = "info",
        log_format: LogFormat = "json",
        on_increment: Callable[[Increment], None] | None = None,
    ) -> "EngineClient":
        """Starts the process and returns while it loads. `on_increment` gets every increment."""
        process = EngineProcess.start(
            config, log_level=log_level, log_format=log_format, on_increment=on_increment
        )
        return cls(config, process)

    @property
    def state(self) -> ClientState:
        if self._process.is_dead:
            return "dead"
        return "loading" if self._factory is None else "ready"

    @property
    def pid(self) -> int | None:
        """The engine process's id; None once the client is closed."""
        return self._process.child.pid

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The engine's latest heartbeat."""
        return self._process.heartbeat

    @property
    def seconds_without_progress(self) -> float:
        """How long work has been waiting, or heartbeats are missing. 0 when idle, infinite once dead."""
        return self._process.seconds_without_progress

    @property
    def requests(self) -> RequestFactory:
        """Makes requests. EngineDeadError while the engine loads and once it is dead."""
        if self._process.is_dead:
            raise self._process.dead_error()
        if self._factory is None:
            raise EngineDeadError("the engine is still loading: wait for ready()")
        return self._factory

    @property
    def tokenizer(self) -> Any:
        return self.requests.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._process.ready.max_model_len if self._process.ready else 0

    async def ready(self) -> None:
        """Waits until the model is loaded. ValueError: the settings cannot work; it says what to change."""
        await asyncio.shield(self._preparing)

    async def dead(self) -> None:
        """Waits until the engine is dead."""
        await self._process.dead()

    async def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        speculation: bool = True,
    ) -> AsyncGenerator[Increment, None]:
        """Increments as they are decided. Closing it early (see contextlib.aclosing) aborts the request."""
        params = sampling_params or SamplingParams()
        request = await self.request(prompt, params, request_id, speculation=speculation)
        async with aclosing(self.run(request)) as events:
            async for event in events:
                if isinstance(event, Increment):
                    yield event

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        speculation: bool = True,
    ) -> RequestOutput:
        """The complete output. Cancelling the task aborts the request."""
        params = sampling_params or SamplingParams()
        request = await self.request(prompt, params, request_id, speculation=speculation)
        async with aclosing(self.run(request)) as events:
            async for event in events:
                if isinstance(event, RequestOutput):
                    return event
        raise EngineDeadError("the request ended without an output")

    def chat_prompt(self, messages: Sequence[Message], **template_options: Any) -> list[int]:
        """Token ids of a conversation, to pass to `stream` or `generate`."""
        return self.requests.chat_prompt(messages, **template_options)

    async def chat_text(self, messages: Sequence[Message], **template_options: Any) -> str:
        """A conversation rendered by the model's chat template, within limits. TemplateError: it failed."""
        requests = self.requests
        requests.check_chat(messages)
        options = {"add_generation_prompt": True, **template_options}
        return await self._templates.render(requests.tokenizer, messages, options)

    async def request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        *,
        speculation: bool = True,
        cache_key: str = "",
        group: str = "",
    ) -> Request:
        """A checked request for `run`; returns once its grammar is compiled."""
        more: dict[str, Any] = {"speculation": speculation, "cache_key": cache_key, "group": group}
        make = partial(self.requests.request, prompt, params, request_id, **more)
        is_long = isinstance(prompt, str) and len(prompt) > _LONG_TEXT
        request = await asyncio.to_thread(make) if is_long else make()
        if params.grammar is not None:
            await self._process.prepare(params.grammar)
        return request

    def run(
        self, request: Request, *, on_end: Callable[[], None] | None = None
    ) -> AsyncGenerator[Increment | RequestOutput, None]:
        """Increments, then the output. Closing it early aborts the request.

        `on_end` is called once the engine has finished the request, even if nothing has been read.
        """
        return self._process.run(request, on_end=on_end)

    def abort(self, request_id: str) -> None:
        """Ends the request with this id; its stream closes with finish_reason `abort`."""
        self._process.abort(request_id)

    async def close(self) -> None:
        """Ends the engine process and its draft; requests that are still running get EngineDeadError."""
        await self._process.close()
        await asyncio.to_thread(self._templates.end)
        self._preparing.cancel()
        await asyncio.gather(self._preparing, return_exceptions=True)

    async def _prepare(self) -> None:
        await self._process.loaded()
        if self._process.refusal:
            raise ValueError(self._process.refusal)
        ready = self._process.ready
        if ready is None:
            raise self._process.dead_error()
        # The engine has loaded, so the tokenizer of a GGUF file has been extracted.
        tokenizer = await asyncio.to_thread(lambda: open_checkpoint(ready.model).tokenizer())
        await asyncio.to_thread(self._templates.wait_until_ready)
        seeds = random.SystemRandom() if self.config.seed is None else random.Random(self.config.seed)
        self._factory = RequestFactory(
            tokenizer, ready.end_ids, ready.vocab_size, seeds, max_model_len=ready.max_model_len
        )
