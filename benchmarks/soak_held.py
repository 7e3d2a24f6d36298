"""What the processes of a server hold, as time goes by: memory, open files, threads."""

import asyncio
import statistics
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from tests.server.process import ServerProcess, resident_bytes

PARTS = ("server", "engine")


@dataclass(frozen=True, slots=True)
class Held:
    megabytes: float
    files: float
    threads: float

    def __str__(self) -> str:
        return f"{self.megabytes:.1f} MB, {self.files:.0f} files, {self.threads:.0f} threads"

    def beyond(self, usual: "Held", growth: float) -> list[str]:
        """What there is more of than usual: by a share, and a handful of files and threads beside."""
        allowed = Held(0, 4, 4)
        names = tuple(field.name for field in fields(self))
        return [
            f"{name} ({getattr(usual, name):.0f} → {getattr(self, name):.0f})"
            for name in names
            if getattr(self, name) > getattr(usual, name) * (1 + growth) + getattr(allowed, name)
        ]

    @classmethod
    def by(cls, pid: int) -> "Held":
        process = Path("/proc") / str(pid)
        files, threads = (len(list((process / name).iterdir())) for name in ("fd", "task"))
        return cls(resident_bytes(pid) / 1e6, files, threads)

    @classmethod
    def usually(cls, seen: "list[Held]") -> "Held":
        """The median of each."""
        return cls(*map(statistics.median, zip(*map(astuple, seen), strict=True)))


class Watch:
    """Of the server and its engine, every half second."""

    def __init__(self, server: ServerProcess) -> None:
        self._pids = dict(zip(PARTS, (server.process.pid, server.children[0]), strict=True))
        self._seen: dict[str, list[Held]] = {part: [] for part in PARTS}

    async def run(self, until_then: float) -> None:
        while time.monotonic() < until_then:
            for part, pid in self._pids.items():
                self._seen[part].append(Held.by(pid))
            await asyncio.sleep(0.5)

    def halves(self) -> dict[str, tuple[Held, Held]]:
        """What was usual in the first half of the time, and in the second."""
        found = {}
        for part, seen in self._seen.items():
            middle = len(seen) // 2
            found[part] = (Held.usually(seen[:middle]), Held.usually(seen[middle:]))
        return found
