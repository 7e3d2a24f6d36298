"""`AsyncLLM`: the engine for asyncio programs and the server, in a process of its own.

Turns prompts into requests with the tokenizer; the engine sees token ids only. Belongs to one event loop.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, TypeVar

from ssd.config import EngineConfig
from ssd.config.server import LogFormat, LogLevel
from ssd.engine.outputs import Increment, RequestOutput
from ssd.engine.prompts import Message, Prompt, RequestFactory
from ssd.engine.request import Request
from ssd.errors import EngineDeadError
from ssd.models.checkpoint import open_checkpoint
from ssd.sampling import SamplingParams
from ssd.worker.engine_process import EngineProcess
from ssd.worker.engine_sockets import Addresses
from ssd.worker.messages import Heartbeat
from ssd.worker.program import engine_child
from ssd.worker.templates import Templates

T = TypeVar("T")
_LONG = 10_000
"""Work on more characters or tokens than this takes milliseconds and is done in a thread."""

EngineState = Literal["loading", "ready", "dead"]


async def off_loop(length: int, work: Callable[[], T]) -> T:
    """Calls `work`, in a thread if `length` is large, so that it does not block the event loop."""
    return await asyncio.to_thread(work) if length > _LONG else work()


class AsyncLLM:
    """A model that generates for many callers at once.

    >>> async with AsyncLLM("path/to/model") as llm:
    ...     async for part in llm.stream("Once upon a time", SamplingParams(max_tokens=32)):
    ...         print(part.text, end="")
    """

    def __init__(
        self,
        model: str | EngineConfig,
        *,
        log_level: LogLevel = "warning",
        log_format: LogFormat = "text",
        on_increment: Callable[[Increment], None] | None = None,
        **settings: Any,
    ) -> None:
        """Starts the engine's process and returns while it loads. Requires a running event loop.

        `settings` are those of EngineConfig; an unknown name is an error. The log of the process goes to
        standard error. `on_increment` gets the increments of all requests.
        """
        if isinstance(model, EngineConfig):
            self.config = model.changed(settings)
        else:
            self.config = EngineConfig.from_settings(str(model), settings)
        addresses = Addresses.private()
        child = engine_child(self.config, addresses, log_level=log_level, log_format=log_format)
        child.start()
        self._process = EngineProcess(addresses, child, on_increment)
        self._factory: RequestFactory | None = None
        self._templates = Templates()  # Start its process while the engine loads.
        self._preparing = asyncio.create_task(self._prepare())

    async def __aenter__(self) -> "AsyncLLM":
        try:
            await self.ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    @property
    def state(self) -> EngineState:
        if self._process.is_dead:
            return "dead"
        return "loading" if self._factory is None else "ready"

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The engine's latest heartbeat."""
        return self._process.heartbeat

    @property
    def seconds_without_progress(self) -> float:
        """How long waiting work made no progress or no heartbeat came. 0 when idle, infinite once dead."""
        return self._process.seconds_without_progress

    @property
    def requests(self) -> RequestFactory:
        """The factory of requests. Raises EngineDeadError while the engine loads and once it is dead."""
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
        """0 while the engine loads."""
        return self._process.ready.max_model_len if self._process.ready else 0

    async def ready(self) -> None:
        """Waits until the model is loaded. Raises ValueError, with a remedy, if the settings cannot work."""
        await asyncio.shield(self._preparing)

    async def dead(self) -> None:
        """Waits until the engine is dead."""
        await self._process.dead()

    async def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> AsyncGenerator[Increment, None]:
        """Increments as they are decided, once the model is loaded.

        Closing it early (see contextlib.aclosing) aborts the request.
        """
        await self.ready()
        request = await self.request(prompt, sampling_params or SamplingParams(), request_id)
        async with aclosing(self.run(request)) as events:
            async for event in events:
                if isinstance(event, Increment):
                    yield event

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> RequestOutput:
        """The complete output, once the model is loaded. Cancelling the task aborts the request."""
        await self.ready()
        request = await self.request(prompt, sampling_params or SamplingParams(), request_id)
        async with aclosing(self.run(request)) as events:
            async for event in events:
                if isinstance(event, RequestOutput):
                    return event
        raise EngineDeadError("the request ended without an output")

    async def chat_prompt(self, messages: Sequence[Message], **template_options: Any) -> list[int]:
        """Token ids of a conversation, to pass to `stream` or `generate`; requires `ready`.

        `template_options` (tools, …) are for the model's chat template. TemplateError: it cannot render the
        messages within its limits. TemplatesBusyError: try again later.
        """
        requests = self.requests
        requests.check_chat(messages)
        options = {"add_generation_prompt": True, **template_options}
        text = await self._templates.render(requests.tokenizer, messages, options)
        # The template already contains the tokens that the tokenizer would add at the start.
        return await self.encoded(text, add_special_tokens=False)

    async def encoded(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; requires `ready`."""
        work = partial(self.requests.encoded, text, add_special_tokens=add_special_tokens)
        return await off_loop(len(text), work)

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
        """A checked request for `run`; returns once its grammar is compiled. Requires `ready`."""
        more: dict[str, Any] = {"speculation": speculation, "cache_key": cache_key, "group": group}
        make = partial(self.requests.request, prompt, params, request_id, **more)
        request = await off_loop(len(prompt) if isinstance(prompt, str) else 0, make)
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
