"""The engine's side of the process that tries grammars: started, asked, and started again if it is gone.

A grammar is a program that strangers write: what it takes to compile cannot be told from its text. So each is
compiled elsewhere first, within limits (`trial_program.py`), and here only if that went well. It is no
`Child`: it inherits sockets that are made anew with each start, and is started again at once by whoever asks.
"""

import logging
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from ssd.worker.trial_program import Ask, TrialSettings, Verdict

logger = logging.getLogger(__name__)

_FAILED = Verdict("its compiler failed on it", is_certain=False)


@dataclass(frozen=True, slots=True)
class _Process:
    process: "subprocess.Popen[bytes]"
    links: tuple[socket.socket, ...]
    files: tuple[BinaryIO, ...]

    @classmethod
    def start(cls, settings: bytes, num_links: int) -> "_Process":
        pairs = [socket.socketpair() for _ in range(num_links)]
        theirs = [str(each.fileno()) for _, each in pairs]
        process = subprocess.Popen(
            [sys.executable, "-m", "ssd.worker.trial_program", *theirs],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # A library that panics writes what is no line of a log.
            pass_fds=[each.fileno() for _, each in pairs],
        )
        for _, each in pairs:
            each.close()
        if process.stdin is not None:
            with process.stdin as stdin:
                stdin.write(settings + b"\n")
        ours = tuple(each for each, _ in pairs)
        return cls(process, ours, tuple(each.makefile("rb") for each in ours))

    def wait_until_ready(self) -> None:
        for file in self.files:
            if not file.readline():
                raise EOFError

    def ask(self, link: int, ask: Ask) -> Verdict:
        self.links[link].sendall(msgspec.json.encode(ask) + b"\n")
        said = self.files[link].readline()
        if not said:
            raise EOFError
        return msgspec.json.decode(said, type=Verdict)

    def end(self) -> None:
        """Also wakes whoever waits for an answer."""
        for link in self.links:
            link.shutdown(socket.SHUT_RDWR)
        self.process.kill()
        self.process.wait()


class Trials:
    """Each link is for one thread at a time."""

    def __init__(self, settings: TrialSettings, num_links: int) -> None:
        self._settings, self._num_links = msgspec.json.encode(settings), num_links
        self._lock = threading.Lock()
        self._current = _Process.start(self._settings, num_links)

    @property
    def pid(self) -> int:
        return self._current.process.pid

    def end(self) -> None:
        self._current.end()

    def wait_until_ready(self) -> None:
        """RuntimeError: it cannot be had."""
        try:
            self._current.wait_until_ready()
        except (OSError, EOFError) as error:
            raise RuntimeError("the process that tries grammars does not start") from error

    def ask(self, link: int, ask: Ask) -> Verdict:
        for _ in range(2):
            current = self._current
            try:
                return current.ask(link, ask)
            except (OSError, EOFError):
                self._replace(current)
        return _FAILED

    def _replace(self, gone: _Process) -> None:
        with self._lock:
            if self._current is gone:
                logger.warning("the process that tries grammars is gone: it is started again")
                gone.end()
                self._current = _Process.start(self._settings, self._num_links)
                self._current.wait_until_ready()
