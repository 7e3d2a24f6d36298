"""A target and a draft, each on its host, joined by TCP with keys: what a test does to them, and reads.

Knows the programs (target.py, draft.py) and what a target says of itself.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd.draft.protocol.sockets import make_keys
from tests.network.hosts import Network
from tests.network.programs import Program

VERIFY = 0.04
"""Seconds that a target's forward takes."""
PORT = 7000


@dataclass(frozen=True, slots=True)
class Window:
    """The increase of a target's counts over some seconds."""

    hits: int
    accepted: int
    waited: float


class Target(Program):
    def now(self, name: str) -> Any:
        """A count of the latest line."""
        return self.lines[-1][name]

    def over(self, seconds: float) -> Window:
        """What happens in the next seconds. No token may be wrong, ever."""
        first = len(self.lines)
        time.sleep(seconds)
        self.until(lambda: len(self.lines) > first + 1)
        before, after = self.lines[first], self.lines[-1]
        assert after["wrong"] == 0
        assert after["tokens"] > before["tokens"]
        return Window(*(after[name] - before[name] for name in ("hits", "accepted", "waited")))

    def until_hits(self, patience: float) -> None:
        before = self.now("hits")
        self.until(lambda: self.now("hits") > before + 5, patience)
        assert self.now("wrong") == 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Who may be where, with keys for both sides."""

    network: Network
    keys: Path

    @classmethod
    def on(cls, network: Network, folder: Path) -> "Pair":
        make_keys(folder)
        return cls(network, folder)

    def address(self, host: str) -> str:
        return f"tcp://{self.network.address(host)}:{PORT}"

    def draft(self, host: str = "draft", *flags: str) -> Program:
        arguments = ["tests.network.draft", self.address(host), "--keys", str(self.keys / "draft"), *flags]
        program = Program(self.network, host, arguments)
        program.until_it_speaks()
        return program

    def target(
        self, address: str, *flags: str, host: str = "target", hosts_file: Path | None = None
    ) -> Target:
        said = ["--keys", str(self.keys / "engine"), "--verify", str(VERIFY), *flags]
        arguments = ["tests.network.target", address, *said]
        program = Target(self.network, host, arguments, hosts_file=hosts_file)
        program.until_it_speaks()
        return program
