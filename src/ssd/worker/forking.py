"""A process that works for this one behind sockets: started, asked, and started again if it is gone.

What strangers write (grammars, messages for a chat template) may take any time or memory, so it is worked on
elsewhere, in forks with limits. Such a program takes one file descriptor for each link, and forks for it;
says a line over each once it is ready; and answers each line with a line. It is no `Child`: it inherits
sockets that are made anew with each start, and is started again at once by whoever asks.
"""

import logging
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import BinaryIO

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Process:
    process: "subprocess.Popen[bytes]"
    links: tuple[socket.socket, ...]
    files: tuple[BinaryIO, ...]

    @classmethod
    def start(cls, module: str, settings: bytes, num_links: int) -> "_Process":
        pairs = [socket.socketpair() for _ in range(num_links)]
        theirs = [str(each.fileno()) for _, each in pairs]
        process = subprocess.Popen(
            [sys.executable, "-m", module, *theirs],
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

    def ask(self, link: int, line: bytes) -> bytes:
        self.links[link].sendall(line + b"\n")
        said = self.files[link].readline()
        if not said:
            raise EOFError
        return said

    def end(self) -> None:
        """Also wakes whoever waits for an answer."""
        for link in self.links:
            link.shutdown(socket.SHUT_RDWR)
        self.process.kill()
        self.process.wait()


class ForkingProcess:
    """Each link is for one thread at a time."""

    def __init__(self, module: str, what: str, settings: bytes, num_links: int) -> None:
        """`what`: what it is, for the log."""
        self._module, self._what = module, what
        self._settings, self._num_links = settings, num_links
        self._lock = threading.Lock()
        self._is_ended = False
        self._current = _Process.start(module, settings, num_links)

    @property
    def pid(self) -> int:
        return self._current.process.pid

    def end(self) -> None:
        """For good: whoever still asks is told so."""
        with self._lock:
            self._is_ended = True
            self._current.end()

    def wait_until_ready(self) -> None:
        """RuntimeError: it cannot be had."""
        try:
            self._current.wait_until_ready()
        except (OSError, EOFError) as error:
            raise RuntimeError(f"{self._what} does not start") from error

    def ask(self, link: int, line: bytes) -> bytes | None:
        """Its answer; None where it ended twice over this question. RuntimeError: it was ended for good."""
        for _ in range(2):
            current = self._current
            try:
                return current.ask(link, line)
            except (OSError, EOFError):
                self._replace(current)
        return None

    def restart(self) -> None:
        """Whatever is on its links is lost."""
        self._replace(self._current)

    def _replace(self, gone: _Process) -> None:
        with self._lock:
            if self._is_ended:
                raise RuntimeError(f"{self._what} was ended")
            if self._current is gone:
                logger.warning("%s is gone: it is started again", self._what)
                gone.end()
                self._current = _Process.start(self._module, self._settings, self._num_links)
                self._current.wait_until_ready()
