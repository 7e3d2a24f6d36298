"""The program that each engine runs in: reads a job and prompts as JSON lines, answers with tokens and times.

    PYTHON worker.py ENGINE

Run by the engine's own interpreter, which needs nothing of this project except for `ssd` itself: engines.py
lies beside this file and has `load_ENGINE(job)`, which returns `generate(case, prompt, max_tokens, note)`.
`note(token_ids)` is called as tokens come, and the clock is here; `generate` may return times of its own.

Standard input: the job, then {"case", "prompt", "max_tokens"} lines. Standard output: {"ready": versions},
then one answer for each line; {"error": …} if the engine refuses. Between questions it may be stopped, with
all that it started.
"""

import ctypes
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1


class Clock:
    """When tokens came. The first burst is left out of the time per token: it waited for the prompt."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._tokens: list[int] = []
        self._first: tuple[float, int] | None = None

    def note(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            return
        self._last = time.perf_counter()
        self._tokens.extend(token_ids)
        self._first = self._first or (self._last, len(token_ids))

    def answer(self) -> dict[str, Any]:
        """`later`: after the first burst."""
        if self._first is None:
            raise ValueError("the engine made no token")
        first, num_first = self._first
        return {
            "tokens": self._tokens,
            "first_token": first - self._started,
            "seconds_later": self._last - first,
            "num_later": len(self._tokens) - num_first,
        }


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def main() -> None:
    if sys.platform == "linux":
        # If the run is killed while this process is stopped, it goes on and reads the end of its input.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What the engine prints goes to the log.
    job = json.loads(sys.stdin.readline())
    if job["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job["cores"])
    generate: Callable[..., dict[str, Any]] | None = None

    def load() -> dict[str, Any]:
        nonlocal generate
        generate = getattr(importlib.import_module("engines"), f"load_{sys.argv[1]}")(job)
        return {"ready": {package: version_of(package) for package in job["packages"]}}

    def measure(asked: dict[str, Any]) -> dict[str, Any]:
        assert generate is not None
        clock = Clock()
        more = generate(asked["case"], asked["prompt"], asked["max_tokens"], clock.note)
        return {**clock.answer(), **more}

    def tried(action: Callable[..., dict[str, Any]], *what: Any) -> str:
        try:
            return json.dumps(action(*what)) + "\n"
        except Exception as error:
            traceback.print_exc()
            return json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n"

    answers.write(tried(load))
    for line in sys.stdin if generate else ():
        answers.write(tried(measure, json.loads(line)))
    # What it started may still be stopped, and would not hear that it has to end.
    os.killpg(os.getpgrp(), signal.SIGCONT)


if __name__ == "__main__":
    main()
