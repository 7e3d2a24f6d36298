"""A target and a draft server in one thread, under a made-up clock: nothing waits or starts a thread."""

import threading
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from benchmarks.ruled import RuledModel, hello, outcome, prompt_of, scheduler_of, shape_of
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import AddressSource, FixedSources
from ssd.draft.client.pool import DraftPool
from ssd.draft.client.speculator import Speculator, Verified
from ssd.draft.protocol.messages import Sampling
from ssd.draft.protocol.sockets import Heard, Keys
from ssd.draft.server.server import DraftServer

LOOKAHEAD = 4
DELAY, STEP, ROUND, TICK = 0.003, 0.005, 0.020, 0.050
"""Seconds: of a frame on its way, a turn of the draft, a verification; between two calls of `tend`."""
TIMEOUT = 0.3


class World:
    """Virtual time, in which frames and turns of the draft are events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._number = count()
        self.draft: Draft | None = Draft(self)
        self._num_peers = count()

    def clock(self) -> float:
        return self.now

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        heappush(self._events, (self.now + seconds, next(self._number), event))

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.step(end):
            pass

    def step(self, end: float) -> bool:
        """The next event, if it comes before the end; else time goes on until then."""
        if not self._events or self._events[0][0] > end:
            self.now = max(self.now, end)
            return False
        self.now, _number, event = heappop(self._events)
        event()
        return True

    def connect(self, address: str, keys: Keys | None) -> "TargetEnd":
        return TargetEnd(self, str(next(self._num_peers)).encode())


class Draft:
    """A server, and its end of all connections. It stops when another takes its place."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ends: dict[bytes, TargetEnd] = {}
        self.inbox: deque[Heard] = deque()
        shape = shape_of(8, 2 * LOOKAHEAD, width=32, slots=128)
        scheduler = scheduler_of(RuledModel(), prefill_chunk=128, shape=shape, clock=world.clock)
        self.server = DraftServer(scheduler, self, hello("draft"), world.clock)
        world.after(STEP, self._turn)

    def send(self, peer: bytes, frame: bytes) -> None:
        self._world.after(DELAY, lambda: self.ends[peer].inbox.append(frame))

    def receive(self, timeout: float) -> Heard | None:
        return self.inbox.popleft() if self.inbox else None

    def close(self) -> None:
        pass

    def _turn(self) -> None:
        if self._world.draft is self:
            self.server.turn(0.0)
            self._world.after(STEP, self._turn)


class TargetEnd:
    def __init__(self, world: World, peer: bytes) -> None:
        self._world, self._peer, self._draft = world, peer, world.draft
        self.inbox: deque[bytes] = deque()
        if self._draft is not None:
            self._draft.ends[peer] = self

    def send(self, frame: bytes) -> None:
        if self._draft is not None:
            heard, inbox = Heard(self._peer, frame), self._draft.inbox
            self._world.after(DELAY, lambda: inbox.append(heard))

    def receive(self, timeout: float) -> bytes | None:
        end = self._world.now + timeout
        while not self.inbox and self._world.step(end):
            pass
        return self.inbox.popleft() if self.inbox else None

    def overfull(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Ticks:
    """In place of the reconnect thread."""

    def __init__(self, world: World, pool: DraftPool) -> None:
        self._world, self._pool, self._is_over = world, pool, False
        self._tick()

    def stop(self) -> None:
        self._is_over = True

    def _tick(self) -> None:
        if not self._is_over:
            self._pool.tend()
            self._world.after(TICK, self._tick)


def story() -> tuple[list[str], float]:
    """A draft works, dies, and another comes. Returns what was known after each round, and the time."""
    world = World()
    source = AddressSource(
        "ipc://nowhere", hello("target"), timeout=TIMEOUT, clock=world.clock, open_socket=world.connect
    )
    client = DraftClient(
        FixedSources(source),
        lookahead=LOOKAHEAD,
        clock=world.clock,
        sleep=world.sleep,
        draw=lambda: 0.5,
        reconnector=lambda pool: Ticks(world, pool),
    )
    speculator = Speculator(client, lookahead=LOOKAHEAD, backup="none", clock=world.clock)
    speculator.start(timeout=5.0)
    assert client.is_ready
    prompt = prompt_of(0)
    speculator.begin("a", prompt, (), Sampling(seed=1), 3000)
    last, causes = prompt[-1], list[str]()
    for number in range(110):
        if number == 30:
            world.draft = None
        if number == 60:
            world.draft = Draft(world)
        [path] = speculator.propose(["a"])
        world.sleep(ROUND)
        tokens = outcome(last, path.tokens)
        [judged] = speculator.settle([Verified("a", tokens, len(path.tokens))], 1, ROUND)
        causes.append(judged.cause)
        last = tokens[-1]
    client.check_integrity()
    assert world.draft is not None
    world.draft.server.check_integrity()
    speculator.close()
    return causes, world.now


def test_both_sides_run_in_one_thread_and_in_virtual_time() -> None:
    num_threads = threading.active_count()
    causes, seconds = story()
    assert threading.active_count() == num_threads
    assert 2.2 < seconds < 2.4
    # The draft's death is noticed after the timeout; the next one is found, and knows the text.
    assert causes[10:30].count("hit") >= 14
    assert causes[48:60].count("hit") == 0
    assert causes[95:].count("hit") >= 10
    assert story() == (causes, seconds), "it depends on more than what it was given"
