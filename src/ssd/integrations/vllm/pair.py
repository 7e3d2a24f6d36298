"""Runs vLLM and its draft as two child processes.

If both compute on one GPU, the draft starts once vLLM listens: vLLM measures the GPU's memory while it
starts, and must not see another process take or free some meanwhile. The draft is restarted when it ends,
while vLLM keeps running. When vLLM ends, the command ends with its exit
code. A signal is passed on to vLLM; a second one ends both at once. Knows child processes and signals, not
their arguments.
"""

import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ssd.processes.child import Child
from ssd.processes.signals import ENDINGS, Signals
from ssd.processes.sockets import private_folder, remove_folder

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_CONNECT_SECONDS = 0.5
_VLLM_GRACE = 10.0
"""Seconds that vLLM has to close its processes, after drain_seconds."""
_DRAFT_GRACE = 2.0
_ENDED_AS_ASKED = {0, *(-number for number in ENDINGS), *(128 + number for number in ENDINGS)}
"""Exit codes after a signal; while it starts, vLLM reports any signal as an interrupt."""
_USER_ERROR = 2
"""The draft's exit code for invalid settings; it has printed a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Arguments of the Python interpreter, and environment variables."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    server: Program
    draft: Program | None = None
    drain_seconds: float = 0.0
    """Time that the server has to finish requests after a signal."""
    draft_waits_for: tuple[str, int] | None = None
    """Host and port: the draft starts once the server listens there. None: both start together."""


def run_pair(programs: Callable[[Path], Programs]) -> int:
    """Run the programs with a private folder until the server ends; returns its exit code."""
    with closing(Signals()) as signals:
        folder = private_folder()
        try:
            return _Pair(programs(folder), signals).run()
        finally:
            remove_folder(folder)


class _Pair:
    def __init__(self, programs: Programs, signals: Signals) -> None:
        self._server = _child(programs.server, "vLLM", grace=_VLLM_GRACE)
        self._draft = _child(programs.draft, "the draft", grace=_DRAFT_GRACE) if programs.draft else None
        self._awaited = programs.draft_waits_for
        self._serves = False
        """Whether vLLM listened before the draft was started: then no failure of the draft ends it."""
        self._patience = programs.drain_seconds + _VLLM_GRACE
        self._signals = signals
        self._asked_by: int | None = None
        self._has_restarted = False
        self._deadline = float("inf")

    def run(self) -> int:
        try:
            self._server.start()
            if self._draft is not None and self._awaited is None:
                self._draft.start()
            while True:
                code = self._look(self._signals.wait(_LOOK_SECONDS))
                if code is not None:
                    return code
        finally:
            # End the server first, so that it does not report a lost draft.
            self._server.end()
            if self._draft is not None:
                self._draft.end()

    def _look(self, signals: list[int]) -> int | None:
        """Check both processes and signals; returns the exit code once all is over."""
        code = self._server.exit_code
        if code is not None:
            return self._final_code(code)
        if signals and self._asked_by is None:
            self._ask_to_end(signals[0])
        if len(signals) > 1:
            return 0
        if time.monotonic() > self._deadline:
            logger.warning("vLLM did not end in time, and is ended")
            self._server.signal(signal.SIGKILL)
            return 0
        return self._watch_draft()

    def _ask_to_end(self, number: int) -> None:
        logger.warning("ending: vLLM has %.0f s; a second signal ends it at once", self._patience)
        self._asked_by, self._deadline = number, time.monotonic() + self._patience
        self._server.signal(number)

    def _watch_draft(self) -> int | None:
        if self._draft is None or self._asked_by is not None:
            return None
        if self._awaited is not None:
            if _listens(self._awaited):
                logger.info("vLLM listens, and has taken its memory: the draft is started")
                self._awaited, self._serves = None, True
                self._try_to_start(self._draft)
            return None
        code = self._draft.exit_code
        if code == _USER_ERROR and not self._has_restarted:
            logger.error("the draft cannot start as it is told: it says above why")
            if not self._serves:
                return code
            logger.error("vLLM serves already, and goes on without a draft")
            self._draft = None
            return None
        if code is not None or self._draft.pid is None:
            self._restart_draft(self._draft)
        return None

    def _restart_draft(self, draft: Child) -> None:
        ended = draft.ending
        if self._try_to_start(draft):
            self._has_restarted = True
            logger.warning("the draft %s, and is started again; vLLM goes on", ended)

    def _try_to_start(self, draft: Child) -> bool:
        try:
            return draft.start()
        except OSError as error:
            logger.warning("the draft cannot be started just now (%s); vLLM goes on", error)
            return False

    def _final_code(self, code: int) -> int:
        if self._asked_by is not None and code in _ENDED_AS_ASKED:
            return 0
        logger.error("vLLM %s", self._server.ending)
        return code if code >= 0 else 128 - code


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _child(program: Program, name: str, *, grace: float) -> Child:
    command = [sys.executable, *program.arguments]
    return Child(command, name=name, environment=program.environment, grace=grace)
