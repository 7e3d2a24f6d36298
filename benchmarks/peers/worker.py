"""The program that every peer runs in: reads a job and prompts as JSON lines, answers with tokens and times.

    PYTHON worker.py worker_vllm.py

Run by the peer's own interpreter, in which nothing of this project need be installed: it imports the standard
library only, and the peer's file by its path. That file has `load(job)`, which returns
`generate(case, prompt, max_tokens, note)`; `note(token_ids)` is called as tokens come, and the clock is here.
What `generate` returns is added to the answer and goes before what the clock says: this engine's own file
hands over its tokens at the end, with times of its own clock, and one that hears pieces of text says how many
tokens there were. Its attribute `versions`, if it has one, is added to those of the packages.

Standard input: the job, then {"case", "prompt", "max_tokens"} lines. Standard output: {"ready": versions},
then one answer for each line; {"error": …} where the peer refuses. What it prints goes to standard error.

Between questions whoever started it may stop it, with all that it started.
"""

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
Note = Callable[[Sequence[int]], None]
Generate = Callable[[str, list[int], int, Note], dict[str, Any]]


class Clock:
    """When tokens came. The first burst is left out of the time per token: it waited for the prompt."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.tokens: list[int] = []
        self._first: tuple[float, int] | None = None
        self._last = self._started

    def note(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            return
        self._last = time.perf_counter()
        self.tokens.extend(token_ids)
        if self._first is None:
            self._first = (self._last, len(token_ids))

    def answer(self) -> dict[str, Any]:
        """`later`: after the first burst."""
        if self._first is None:
            raise ValueError("the peer made no token")
        first, num_first = self._first
        return {
            "tokens": self.tokens,
            "first_token": first - self._started,
            "seconds_later": self._last - first,
            "num_later": len(self.tokens) - num_first,
        }


def load_peer(file: Path, job: dict[str, Any]) -> Generate:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded: Generate = module.load(job)
    return loaded


def measure(generate: Generate, asked: dict[str, Any]) -> dict[str, Any]:
    clock = Clock()
    more = generate(asked["case"], asked["prompt"], asked["max_tokens"], clock.note)
    return {**clock.answer(), **more}


def _tried(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return action()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _ready(file: Path, job: dict[str, Any], loaded: list[Generate]) -> dict[str, Any]:
    loaded.append(load_peer(file, job))
    versions = {}
    for package in job["packages"]:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "?"
    return {"ready": {**versions, **getattr(loaded[0], "versions", {})}}


def _go_on_if_alone() -> None:
    """Stopped when the run is killed, nobody would continue it: the system does, and it reads the end.

    Linux only. Elsewhere a worker that is stopped just then stays so, until someone ends it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))


def main() -> None:
    _go_on_if_alone()
    # The folder of this file is no place to import from.
    sys.path.pop(0)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    if job["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job["cores"])
    loaded: list[Generate] = []
    answers.write(json.dumps(_tried(lambda: _ready(Path(sys.argv[1]), job, loaded))) + "\n")
    if not loaded:
        sys.exit(1)
    for line in sys.stdin:
        asked = json.loads(line)
        answers.write(json.dumps(_tried(lambda asked=asked: measure(loaded[0], asked))) + "\n")  # type: ignore[misc]
    # What it started may still be stopped, and would not hear that it is to end.
    os.killpg(os.getpgrp(), signal.SIGCONT)


if __name__ == "__main__":
    main()
