"""A network of hosts for a test: programs run in them, and the lines between them can be delayed or cut.

    with Network("target", "draft") as network:
        network.between("target", "draft", Way(delay=0.005))
        subprocess.Popen(network.command("draft", [sys.executable, …]))

Knows the relay (relay.py) and how a program enters a namespace. Does not know drafts.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import msgspec

from tests.network.relay import Setting, Way

_ROOT = Path(__file__).parents[2]


class NetworkError(RuntimeError):
    """This machine does not allow network namespaces; the message says what is missing."""


def environment() -> dict[str, str]:
    """Variables with which programs of this repository find it."""
    return os.environ | {"PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"}


def refusal() -> str:
    """Why no network can be made here; empty if one can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if shutil.which("nsenter") is None:
        return "no nsenter: install util-linux"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "no /dev/net/tun that this user may open: run as root, with the module tun"
    return ""


class Network:
    def __init__(self, *names: str) -> None:
        reason = refusal()
        if reason:
            raise NetworkError(reason)
        self._addresses = {name: f"10.77.0.{place}" for place, name in enumerate(names, start=1)}
        self._relay = subprocess.Popen(
            [sys.executable, "-m", "tests.network.relay", *self._addresses.values()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        first = self._read_line()
        if not first:
            said = self._relay.communicate()[1].decode().strip().splitlines()
            raise NetworkError(f"no network namespaces here: {said[-1] if said else 'the relay ended'}")
        self._namespaces: dict[str, int] = json.loads(first)

    def address(self, name: str) -> str:
        return self._addresses[name]

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on the host of this name."""
        return ["nsenter", f"--net={self._file(name)}", *command]

    def one_way(self, source: str, destination: str, way: Way) -> None:
        """From one host to another, from now on."""
        assert self._relay.stdin is not None
        setting = Setting(self.address(source), self.address(destination), way)
        self._relay.stdin.write(msgspec.json.encode(setting) + b"\n")
        self._relay.stdin.flush()
        self._read_line()

    def between(self, one: str, other: str, way: Way) -> None:
        """In both directions."""
        self.one_way(one, other, way)
        self.one_way(other, one, way)

    def everywhere(self, way: Way) -> None:
        for one, other in permutations(self._addresses, 2):
            self.one_way(one, other, way)

    def mend(self) -> None:
        """Every line carries everything at once."""
        self.everywhere(Way())

    def close(self) -> None:
        self._relay.communicate()

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _file(self, name: str) -> str:
        """The open file of its namespace."""
        return f"/proc/{self._relay.pid}/fd/{self._namespaces[self.address(name)]}"

    def _read_line(self) -> bytes:
        assert self._relay.stdout is not None
        return self._relay.stdout.readline()
