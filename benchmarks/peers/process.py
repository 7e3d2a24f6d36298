"""A peer's worker as a process: started, asked one prompt at a time, ended. Knows the protocol of worker.py.

Between two questions a peer is stopped with everything it started, so that it may wait as it likes without
taking cores from whoever is measured. A peer that fails says so as PeerError, with the end of what it wrote;
the run goes on without it.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import has_our_draft
from benchmarks.peers.registry import SSD, Peer, environment_of

_LOAD_SECONDS, _ANSWER_SECONDS, _END_SECONDS = 1800.0, 1200.0, 20.0


class PeerError(Exception):
    """A peer could not do what it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """A worker that could be started: whose, for which cases, by which interpreter."""

    peer: Peer
    cases: Sequence[str]
    python: Path
    job: dict[str, Any]
    num_bytes: int
    """Memory it is expected to take."""

    @property
    def name(self) -> str:
        """One name for each worker of a run: a peer with a process for each case has several."""
        return self.peer.name if self.peer.shares_weights else f"{self.peer.name}-{self.cases[0]}"

    @property
    def has_our_draft(self) -> bool:
        """Inside another engine."""
        return self.peer.name != SSD and any(map(has_our_draft, self.cases))

    @property
    def is_stopped_while_idle(self) -> bool:
        """A draft of ours must give signs of life, and hear some."""
        return self.peer.is_stopped_while_idle and not self.has_our_draft

    @property
    def engine(self) -> str:
        """What answers, in words: texts of two that differ here are not those of one engine."""
        if self.job["url"]:
            return f"{self.job['url']} serving {self.job['served_model'] or 'its first model'}"
        return f"{self.job['program'] or self.python} with {self.job['model']}"


class Worker:
    """`with Worker(plan, log) as worker: worker.ask(…)`; loading happens on entry."""

    def __init__(self, plan: WorkerPlan, log: Path) -> None:
        self.plan, self._log = plan, log
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.versions: dict[str, str] = {}
        self._is_closed = False

    def __enter__(self) -> "Worker":
        plan = self.plan
        here = Path(__file__).parent
        words = environment_of(plan.peer, plan.python, plan.job["cores"])
        command = ["env", *words, str(plan.python), str(here / "worker.py"), str(plan.peer.worker_file)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                # A session of its own: whatever the peer starts ends with it.
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.versions = self._exchange(plan.job, _LOAD_SECONDS)["ready"]
        except BaseException:
            self.close()
            raise
        self._send(signal.SIGSTOP)
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of its first process, and of the group of all that it starts."""
        return self._process.pid

    def ask(self, case: str, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        asked = {"case": case, "prompt": list(prompt), "max_tokens": max_tokens}
        self._send(signal.SIGCONT)
        try:
            return self._exchange(asked, _ANSWER_SECONDS)
        finally:
            self._send(signal.SIGSTOP)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        process = self._process
        self._send(signal.SIGCONT)  # Stopped, it would not hear that it is to end.
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        # Whoever is left of its group: servers it started, or itself where it did not end.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _send(self, number: signal.Signals) -> None:
        """To the worker and all it started, if they are stopped between questions and still there."""
        if self.plan.is_stopped_while_idle and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _exchange(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except BrokenPipeError:
            line = None
        except queue.Empty:
            raise PeerError(f"no answer within {seconds:.0f} s; see {self._log}") from None
        if line is None:
            raise PeerError(f"its process {self._how_it_ended()}; see {self._log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{answer['error']}; see {self._log}")
        return answer

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "stopped answering"
        if code == -signal.SIGKILL:
            return "was killed, as systems do that run out of memory: give --memory, or close other programs"
        return f"ended with code {code}: {_end_of(self._log)}"


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")[:200]
