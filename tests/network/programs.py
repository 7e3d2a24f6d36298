"""Programs on hosts, as a test sees them: started in a host, read line by line, ended with the test.

Each writes JSON, one object a line. Knows processes. Does not know what they do.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.network.hosts import Network, environment

_PATIENCE = 120.0
"""Seconds: a busy machine takes long to start a program."""


def say(words: dict[str, Any]) -> None:
    """For a program: one line of what a test reads."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _with_hosts(hosts_file: Path, program: Sequence[str]) -> list[str]:
    """In a namespace of mounts of its own, so that nobody else sees these names."""
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(hosts_file), *program]


class Program:
    def __init__(
        self, network: Network | None, host: str, arguments: Sequence[str], *, hosts_file: Path | None = None
    ) -> None:
        """`arguments` are a module's name and what it is told; `hosts_file` is its /etc/hosts, if given.

        Without a network it runs on this machine, whatever the host.
        """
        command = [sys.executable, "-m", *arguments]
        if hosts_file is not None:
            command = _with_hosts(hosts_file, command)
        if network is not None:
            command = network.command(host, command)
        # What it reads ends with this process, so that it may too.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, condition: Callable[[], object], patience: float = _PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            assert self.process.poll() is None, f"it ended with code {self.process.returncode}"
            assert time.monotonic() < deadline, f"it did not happen; last said: {self.lines[-1:]}"
            time.sleep(0.01)

    def until_it_speaks(self) -> None:
        self.until(lambda: self.lines)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))
