"""Chat backend with an engine in this process. The mode can change without reloading the target."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ssd.cli.chat_talk import AnswerStats, Message, Piece
from ssd.cli.console import load_llm
from ssd.cli.progress import loading

if TYPE_CHECKING:
    from ssd.config import Mode
    from ssd.engine.llm import LLM
    from ssd.engine.outputs import Increment, SpeculationStats
    from ssd.sampling import SamplingParams


class LocalBackend:
    def __init__(self, model: str, settings: dict[str, Any], params: SamplingParams) -> None:
        """A draft that is given with `--mode ar` is kept for a later /mode."""
        self._params = params
        self._drafting = {"draft": settings["draft"]} if "draft" in settings else {}
        self._hf_cache = settings.get("hf_cache")
        if settings.get("mode", "ar") == "ar":
            settings = {name: value for name, value in settings.items() if name != "draft"}
        self._llm: LLM = load_llm(model, settings)
        self._model = model
        self._before = self._llm.stats.speculation
        self._num_tokens = 0

    @property
    def title(self) -> str:
        draft = f" with {self._drafting['draft']['model']}" if self._llm.mode != "ar" else ""
        return f"{self._model}, mode {self._llm.mode}{draft}"

    def answer(self, messages: list[Message]) -> Iterator[Piece]:
        prompt = self._llm.chat_prompt(messages)
        pieces = Pieces(self._llm.tokenizer, prompt)
        self._before, self._num_tokens = self._llm.stats.speculation, 0
        with _interrupts() as interrupts, closing(self._llm.stream(prompt, self._params)) as stream:
            for increment in stream:
                self._num_tokens += len(increment.token_ids)
                yield from pieces.of(increment)
                if interrupts:
                    raise KeyboardInterrupt

    @property
    def usage(self) -> AnswerStats:
        return _usage(self._before, self._llm.stats.speculation, self._num_tokens, mode=self._llm.mode)

    def switch_mode(self, mode: Mode, draft: str | None) -> None:
        from ssd.models.hub import local_model, model_title

        drafting = self._drafting
        if draft is not None:
            drafting = drafting | {"draft": {**drafting.get("draft", {}), "model": draft}}
        settings = {} if mode == "ar" else dict(drafting)
        model = settings.get("draft", {}).get("model")
        if mode != "ar" and model is None:
            raise ValueError(f"mode {mode} needs a draft: /mode {mode} SMALL_MODEL")
        if model is not None and "://" not in model:
            found = local_model(model, hf_cache=self._hf_cache)
            settings["draft"] = {**settings["draft"], "model": found}
        if model is None:
            self._llm.switch_mode(mode)  # Nothing is loaded.
        else:
            with loading(f"the draft {model_title(model)}", then=f"starting mode {mode}") as show_progress:
                self._llm.switch_mode(mode, show_progress=show_progress, **settings)
        self._drafting = drafting
        self._before = self._llm.stats.speculation

    def close(self) -> None:
        self._llm.close()


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Defer Ctrl-C to the end of an engine step, which must not be interrupted.

    A second Ctrl-C raises KeyboardInterrupt at once, because a long prompt may take long.
    """
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


class Pieces:
    """Splits an increment's text at its tokens, so that each piece has one origin."""

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        from ssd.engine.detokenizer import TextByToken

        self._texts = TextByToken(tokenizer, prompt, skip_special_tokens=True)

    def of(self, increment: Increment) -> list[Piece]:
        texts = self._texts.divide(increment.text, increment.token_ids)
        if not texts:
            return [Piece(increment.text)] if increment.text else []
        return [Piece(text, origin, 1) for text, origin in zip(texts, increment.origins, strict=True)]


def _usage(before: SpeculationStats, after: SpeculationStats, num_tokens: int, *, mode: Mode) -> AnswerStats:
    if mode == "ar":
        return AnswerStats(num_tokens)
    names = [each.name for each in fields(after)]
    of_answer = type(after)(**{name: getattr(after, name) - getattr(before, name) for name in names})
    return AnswerStats(num_tokens, of_answer.accepted_per_round, of_answer.hit_rate)
