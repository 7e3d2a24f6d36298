"""An engine's worker as a process: started, asked one prompt at a time, ended. Speaks as worker.py does.

Between two questions it is stopped with everything it started, so that threads that spin while they wait take
no core from the engine that is measured. An engine that fails raises PeerError with the end of its log.
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

from benchmarks.peers.registry import SSD, Peer, environment_of

_LOAD_SECONDS, _ANSWER_SECONDS, _END_SECONDS = 1800.0, 1200.0, 20.0


class PeerError(Exception):
    """An engine could not do what it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    peer: Peer
    cases: Sequence[str]
    python: Path
    job: dict[str, Any]

    @property
    def name(self) -> str:
        """A peer with a process for each case has several."""
        return self.peer.name if self.peer.shares_weights else f"{self.peer.name}-{self.cases[0]}"


class Worker:
    """Loads on creation; `close` ends it and everything it started."""

    def __init__(self, plan: WorkerPlan, log: Path) -> None:
        self.plan, self._log = plan, log
        self._lines: queue.Queue[str | None] = queue.Queue()
        command = [str(plan.python), str(Path(__file__).parent / "worker.py"), plan.peer.name]
        environment = os.environ | environment_of(plan.peer, plan.python, plan.job["cores"])
        with self._log.open("ab") as sink:
            # A session of its own, so that a signal reaches all that it starts.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True,
                start_new_session=True, env=environment,
            )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.versions: dict[str, str] = self._exchange(plan.job, _LOAD_SECONDS)["ready"]
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, case: str, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        try:
            asked = {"case": case, "prompt": list(prompt), "max_tokens": max_tokens}
            return self._exchange(asked, _ANSWER_SECONDS)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        process = self._process
        self._signal(signal.SIGCONT)  # Stopped, it would not hear that it has to end.
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Except to this engine: its draft must give signs of life, and rests by itself."""
        if self.plan.peer.name != SSD and self._process.poll() is None:
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
            said = self._log.read_text(errors="replace").strip().rpartition("\n")[2][:200]
            raise PeerError(f"its process ended with code {self._process.wait()}: {said}; see {self._log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{answer['error']}; see {self._log}")
        return answer
