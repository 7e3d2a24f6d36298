"""`LLM`: the engine for scripts. Calls block until their outputs are complete."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from ssd.config import EngineConfig, Mode
from ssd.decoding.decoder import Decoder
from ssd.decoding.timeline import Timeline
from ssd.engine.build import build_engine, with_mode
from ssd.engine.drafting import replace_draft
from ssd.engine.engine_loop import EngineLoop
from ssd.engine.outputs import EngineStats, Increment, RequestOutput
from ssd.engine.prompts import Message, Prompt
from ssd.models.hub import with_local_models
from ssd.models.weights import ShowProgress
from ssd.runtime.cores import CoreSplit, move_to_cores
from ssd.sampling import SamplingParams


class LLM:
    """A model that generates.

    >>> llm = LLM("path/to/model")
    >>> llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=32))[0].outputs[0].text
    """

    def __init__(self, model: str, *, show_progress: ShowProgress = True, **settings: Any) -> None:
        """`settings` are those of EngineConfig; an unknown name is an error."""
        self._asked = EngineConfig.from_settings(str(model), settings)
        """The settings that `switch_mode` starts from."""
        self._engine = build_engine(self._asked, show_progress=show_progress)
        self._loop = EngineLoop(self._engine.core)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the draft process, if there is one, and gives back the cores chosen for the target.

        The draft process also ends when the LLM is garbage-collected.
        """
        self._engine.close()

    def replace_draft(self, draft: str, **settings: Any) -> None:
        """Replaces the draft by another model or address, as soon as that is ready; requests go on.

        `settings` are settings of the new draft, such as its width. It is started and connected while
        requests run.
        """
        engine = self._engine
        config = with_local_models(engine.config.changed({"draft": {"model": draft, **settings}}))
        replace_draft(engine.core.decoder.proposer, config, engine.loaded, engine.requests.tokenizer)

    def switch_mode(self, mode: Mode, *, show_progress: ShowProgress = False, **settings: Any) -> None:
        """Changes the decoding mode of the loaded target, between requests.

        `settings` change with it, such as the draft: llm.switch_mode("ssd", draft="small-model"). The draft
        and its settings are remembered for later calls. If the new mode fails to start, nothing changes.
        Statistics start again.
        """
        alone = {"draft": None} if mode == "ar" else {}
        config = self._asked.changed(alone | settings | {"mode": mode})
        self._engine = with_mode(self._engine, config, show_progress=show_progress)
        self._loop = EngineLoop(self._engine.core)
        if mode != "ar":
            self._asked = config

    @contextmanager
    def target_alone(self, *, all_cores: bool = False) -> Iterator[None]:
        """Inside it the target decodes without its draft, which stays loaded. Only between requests.

        `all_cores`: also on the cores of the draft, which has nothing to compute meanwhile.
        """
        core, cores = self._engine.core, self.cores
        drafted = core.decoder
        core.use(Decoder(self._engine.loaded.runner))
        if all_cores:
            move_to_cores((*cores.target, *cores.draft))
        try:
            yield
        finally:
            core.use(drafted)
            if all_cores:
                move_to_cores(cores.target)

    @property
    def cores(self) -> CoreSplit:
        """The cores that target and draft were given; none: their threads are not pinned."""
        config = self._engine.config
        return CoreSplit(config.cores, () if config.draft is None else config.draft.cores)

    @property
    def mode(self) -> Mode:
        return self._engine.config.mode

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine started."""
        return self._engine.core.stats

    def record(self) -> Timeline:
        """Records from now on when target, host and draft compute: see Timeline.write."""
        timeline = Timeline()
        self._engine.core.timeline = timeline
        return timeline

    @property
    def tokenizer(self) -> Any:
        return self._engine.requests.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._engine.loaded.max_model_len

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """One output for each prompt, in order; prompts are text or token ids, one or a list of them."""
        listed = _as_list(prompts)
        return self._run(listed, _params_for(listed, sampling_params), use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """The assistant's answer to a conversation, or to each of several."""
        is_one = isinstance(messages, str) or (bool(messages) and isinstance(messages[0], dict))
        conversations: Any = [messages] if is_one else messages
        prompts = [self._engine.requests.chat_prompt(conversation) for conversation in conversations]
        return self._run(prompts, _params_for(prompts, sampling_params), use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[Increment, None, None]:
        """Increments of one request as they are decided. Leaving the loop early aborts the request.

        Other requests may be streamed or generated meanwhile.
        """
        loop = self._loop
        request = self._engine.requests.request(prompt, sampling_params or SamplingParams())
        loop.add(request)
        try:
            for each in loop.receive([request.request_id]):
                if isinstance(each, Increment):
                    yield each
        finally:
            loop.leave(request.request_id)

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, to pass to `stream` or `generate`."""
        return self._engine.requests.chat_prompt(messages)

    def _run(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        loop = self._loop
        requests = [
            self._engine.requests.request(prompt, each) for prompt, each in zip(prompts, params, strict=True)
        ]
        done: dict[str, RequestOutput] = {}
        try:
            for request in requests:
                loop.add(request)
            with tqdm(total=len(requests), desc="generating", unit="req", disable=not use_tqdm) as bar:
                for each in loop.receive([request.request_id for request in requests]):
                    if isinstance(each, RequestOutput):
                        done[each.request_id] = each
                        bar.update(1)
        finally:
            # After an error or Ctrl-C, no request of this call keeps running.
            for request in requests:
                loop.leave(request.request_id)
        return [done[request.request_id] for request in requests]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts are text, token ids, or a list of either, not {prompts!r:.60}")
    is_one = bool(prompts) and isinstance(prompts[0], int)
    return [prompts] if is_one else list(prompts)  # type: ignore[list-item, arg-type]


def _params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(prompts)
    if len(params) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts but {len(params)} sampling parameters: pass one for each")
    return list(params)
