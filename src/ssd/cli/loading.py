"""Loads an engine with progress bars on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from ssd.config import DraftConfig

if TYPE_CHECKING:
    from ssd.engine.llm import LLM
    from ssd.models.weights import ShowProgress


@contextmanager
def loading(what: str, then: str) -> Iterator[ShowProgress]:
    """Progress bars while models load; between and after them, a spinner with the text `then`."""
    if not sys.stderr.isatty():
        yield False
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars = _Bars(progress, progress.add_task(f"opening {what}", total=None), then)
        yield bars.make


def load_llm(model: str, settings: dict[str, Any]) -> LLM:
    """The engine that generate and chat run in their own process."""
    from ssd.models.hub import local_model

    # Download first: the hub shows its own progress bars, and torch is not imported yet.
    path = local_model(model, hf_cache=settings.get("hf_cache"))
    then = "starting"
    if "draft" in settings:
        draft = DraftConfig.from_settings(settings["draft"])
        then = f"starting the draft {draft.model}"
        if not draft.is_elsewhere:
            draft = replace(draft, model=local_model(draft.model, hf_cache=settings.get("hf_cache")))
        settings = {**settings, "draft": draft}
    with loading(model, then=then) as show_progress:
        from ssd.engine.llm import LLM

        return LLM(path, show_progress=show_progress, **settings)


class _Bars:
    def __init__(self, progress: Progress, waiting: TaskID, then: str) -> None:
        self._progress, self._waiting, self._then = progress, waiting, then

    def make(self, description: str, total: int) -> _Bar:
        self._progress.update(self._waiting, visible=False)
        return _Bar(self._progress, self._progress.add_task(description, total=total), self._closed)

    def _closed(self) -> None:
        self._progress.update(self._waiting, description=self._then, visible=True)


class _Bar:
    def __init__(self, progress: Progress, task: TaskID, closed: Any) -> None:
        self._progress, self._task, self._closed = progress, task, closed

    def update(self, n: int, /) -> None:
        self._progress.advance(self._task, n)

    def close(self) -> None:
        self._progress.remove_task(self._task)
        self._closed()
