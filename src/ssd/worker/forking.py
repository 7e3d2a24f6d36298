"""A helper process that answers requests over sockets, and is restarted when it dies.

Untrusted input (grammars, messages for a chat template) may take any time or memory to process, so separate
programs process it in forks with limits. Such a program gets one socket for each channel as a file
descriptor and forks a process for it. It sends an empty line over each channel when it is ready, and answers
each line with a line. It is not a `Child`: it inherits new sockets with each start, and the next request
restarts it.
"""

import logging
import resource
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger(__name__)

_MEMORY_NOW = Path("/proc/self/statm")
"""Missing on macOS: memory is not limited there, only processor time."""


def limit_memory(num_bytes: int) -> None:
    """Limits what this process allocates from now on; it leaves no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if _MEMORY_NOW.exists():
        mapped = int(_MEMORY_NOW.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + num_bytes, resource.RLIM_INFINITY))


@dataclass(frozen=True, slots=True)
class _Process:
    process: "subprocess.Popen[bytes]"
    channels: tuple[socket.socket, ...]
    files: tuple[BinaryIO, ...]

    @classmethod
    def start(cls, module: str, settings: bytes, num_channels: int) -> "_Process":
        pairs = [socket.socketpair() for _ in range(num_channels)]
        theirs = [str(each.fileno()) for _, each in pairs]
        process = subprocess.Popen(
            [sys.executable, "-m", module, *theirs],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # A library's panic message is no log line.
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

    def ask(self, channel: int, line: bytes) -> bytes:
        self.channels[channel].sendall(line + b"\n")
        said = self.files[channel].readline()
        if not said:
            raise EOFError
        return said

    def end(self) -> None:
        """Kills the process and wakes threads that wait for an answer."""
        for channel in self.channels:
            channel.shutdown(socket.SHUT_RDWR)
        self.process.kill()
        self.process.wait()


class ForkingProcess:
    """Each channel may be used by one thread at a time."""

    def __init__(self, module: str, what: str, settings: bytes, num_channels: int) -> None:
        """`what` describes the process in log lines and errors."""
        self._module, self._what = module, what
        self._settings, self._num_channels = settings, num_channels
        self._lock = threading.Lock()
        self._is_ended = False
        self._current = _Process.start(module, settings, num_channels)

    @property
    def pid(self) -> int:
        return self._current.process.pid

    def end(self) -> None:
        """Ends the process for good; later requests raise RuntimeError."""
        with self._lock:
            self._is_ended = True
            self._current.end()

    def wait_until_ready(self) -> None:
        """RuntimeError: the process does not start."""
        try:
            self._current.wait_until_ready()
        except (OSError, EOFError) as error:
            raise RuntimeError(f"{self._what} does not start") from error

    def ask(self, channel: int, line: bytes) -> bytes | None:
        """The answer to a line; None if the process died twice on it. RuntimeError: `end` was called."""
        for _ in range(2):
            current = self._current
            try:
                return current.ask(channel, line)
            except (OSError, EOFError):
                self._replace(current)
        return None

    def restart(self) -> None:
        """Replaces the process; lines in its channels are lost."""
        self._replace(self._current)

    def _replace(self, gone: _Process) -> None:
        with self._lock:
            if self._is_ended:
                raise RuntimeError(f"{self._what} was ended")
            if self._current is gone:
                logger.warning("%s died: restarting it", self._what)
                gone.end()
                self._current = _Process.start(self._module, self._settings, self._num_channels)
                self._current.wait_until_ready()
