"""Virtual time and the processes that live in it: one event after the other, in one thread.

Time passes only between events. A process reads its own clock, is busy for as long as its work takes, may be
frozen, and ends. Everything that is drawn comes from streams of random numbers that are named after what they
are for, so that a further draw in one place changes no other place. `trace` is a hash of all that happened:
two runs of a seed are equal if their traces are. Knows no drafts, targets or networks.
"""

import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], object]


class ViolationError(Exception):
    """Something happened that must never happen."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed, self.now = seed, 0.0
        self.num_events = 0
        self.messages: Counter[str] = Counter()
        """Delivered, by direction."""
        self.num_bytes = 0
        self.faults: Counter[str] = Counter()
        """Injected, by kind."""
        self.after_event: Callable[[Process], object] = _nothing
        """Called after each event of a process."""
        self._events: list[tuple[float, int, Action]] = []
        self._number = count()
        self._trace = blake2b(digest_size=16)

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    def random_of(self, purpose: str) -> random.Random:
        # Text seeds do not depend on Python's hashes.
        return random.Random(f"{self.seed} {purpose}")

    def at(self, time: float, event: Action) -> None:
        heappush(self._events, (time, next(self._number), event))

    def after(self, seconds: float, event: Action) -> None:
        self.at(self.now + seconds, event)

    def step(self, end: float) -> bool:
        """The next event, if it comes before the end; otherwise time goes on until then."""
        if not self._events or self._events[0][0] > end:
            self.now = max(self.now, end)
            return False
        self.now, _number, event = heappop(self._events)
        self.num_events += 1
        event()
        return True

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.step(end):
            pass

    def note(self, what: bytes, number: int = 0) -> None:
        """Adds to the trace."""
        self._trace.update(struct.pack("<dq", self.now, number))
        self._trace.update(what)

    def inject(self, kind: str) -> None:
        """Counts a fault."""
        self.faults[kind] += 1
        self.note(kind.encode())


def _nothing(_process: "Process") -> None:
    pass


_RETRY_SECONDS = 0.001


class Process:
    """What runs on a host: does one thing at a time, and takes time for it."""

    def __init__(self, world: World, name: str, *, started_at: float = 0.0) -> None:
        """`started_at`: what its clock shows when the world begins; no two hosts agree on that."""
        self.world, self.name = world, name
        self.is_alive = True
        self.busy = 0.0
        """Seconds that its present work takes so far."""
        self.cpu = 0.0
        """Processor seconds that it took in reality. Nothing depends on them."""
        self._ahead = started_at
        self._free_at = self._frozen_until = 0.0
        self._is_working = False

    def clock(self) -> float:
        return self.world.now + self.busy + self._ahead

    def jump(self, seconds: float) -> None:
        """Its clock jumps ahead, as on a host that was suspended. A monotonic clock never goes back."""
        self._ahead += seconds

    def work(self, seconds: float) -> None:
        self.busy += seconds

    @property
    def is_frozen(self) -> bool:
        return self._frozen_until > self.world.now

    def freeze(self, seconds: float) -> None:
        self._frozen_until = max(self._frozen_until, self.world.now + seconds)

    def end(self) -> None:
        self.is_alive = False

    def do(self, action: Action) -> None:
        """Does it now, or as soon as it may: a process that is frozen or busy does it afterwards."""
        if not self.is_alive:
            return
        wait = max(self._free_at, self._frozen_until) - self.world.now
        if self._is_working:
            # Its thread waits inside a call: what else it has to do comes after that.
            wait = max(wait, _RETRY_SECONDS)
        if wait > 0:
            self.world.after(wait, lambda: self.do(action))
            return
        self._is_working, started = True, time.process_time()
        try:
            action()
        finally:
            self._free_at, self.busy, self._is_working = self.world.now + self.busy, 0.0, False
            self.cpu += time.process_time() - started
        self.world.after_event(self)

    def after(self, seconds: float, action: Action) -> None:
        self.world.after(seconds, lambda: self.do(action))

    def wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Waits inside its work: meanwhile others go on."""
        end = self.world.now + self.busy + seconds
        while not is_over() and self.world.step(end):
            pass
