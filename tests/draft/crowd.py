"""Several targets on one draft, in the test's own thread and time: a rule for the models, queues for sockets.

A tick is a step of the draft; every few ticks a target ends a round. Nothing depends on the clock, so every
figure can be had again. Knows the service, clients and the rule; not what is expected of them.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.ruled import NUM_BLOCKS, RuledModel, hello, logits_after, outcome, scheduler_of, shape_of
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import Connection, FixedSources
from ssd.draft.client.mirrors import Knowledge
from ssd.draft.protocol.messages import Sampling
from ssd.draft.protocol.sockets import Heard, SocketError
from ssd.draft.server.scheduler import DraftScheduler
from ssd.draft.server.server import DraftServer
from ssd.draft.server.session import DraftSession
from ssd.draft.server.tenants import Tenants
from ssd.draft.tree.children import GREEDY_CANDIDATES
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Tables, TreeRows
from ssd.sampling.select import largest_of_rows

STEP = 0.002
"""Seconds that a tick stands for."""
LOOKAHEAD = 4


class Hub:
    """The draft's end of all lines."""

    def __init__(self) -> None:
        self.inbox: deque[Heard] = deque()
        self.outboxes: dict[bytes, deque[bytes]] = {}

    def send(self, peer: bytes, frame: bytes) -> None:
        if peer not in self.outboxes:
            raise SocketError("it is gone")
        self.outboxes[peer].append(frame)

    def receive(self, timeout: float) -> Heard | None:
        return self.inbox.popleft() if self.inbox else None

    def close(self) -> None:
        pass


class Spoke:
    """A target's end."""

    def __init__(self, hub: Hub, peer: bytes, key: str) -> None:
        self._hub, self._peer, self._key = hub, peer, key
        hub.outboxes[peer] = deque()

    def send(self, frame: bytes) -> None:
        self._hub.inbox.append(Heard(self._peer, frame, self._key))

    def overfull(self) -> str:
        return ""

    def receive(self, timeout: float) -> bytes | None:
        mine = self._hub.outboxes.get(self._peer)
        return mine.popleft() if mine else None

    def close(self) -> None:
        self._hub.outboxes.pop(self._peer, None)


class Source:
    name = "a draft"

    def __init__(self, crowd: "Crowd", peer: bytes, key: str) -> None:
        self._crowd, self._peer, self._key = crowd, peer, key

    def connect(self) -> Connection | None:
        link = Spoke(self._crowd.hub, self._peer, self._key)
        return Connection(
            link, hello(self._peer.decode()), self._crowd.clock, timeout=60.0, hello_timeout=60.0
        )

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass


def second_guess(last: int) -> int:
    """What a draft by the rule holds to be next, but hardly likely."""
    ids, _scores = largest_of_rows(logits_after(torch.tensor([last]), errs=True), GREEDY_CANDIDATES)
    return int(ids[0, 1])


@dataclass
class Target:
    """Decodes so many texts at a time, each of so many tokens."""

    client: DraftClient
    offset: int
    batch: int
    prompt: int
    max_tokens: int
    texts: dict[int, int] = field(default_factory=dict)
    """Of each text: its last token."""
    left: dict[int, int] = field(default_factory=dict)
    num_begun: int = 0
    known: Counter[Knowledge] = field(default_factory=Counter)
    lies: bool = False
    """It reports that the draft's second guess came, always and of one token."""

    def round(self) -> None:
        while len(self.texts) < self.batch:
            self._begin()
        keys = list(self.texts)
        paths = self.client.paths(keys, LOOKAHEAD)
        said = [outcome(self.texts[key], path.tokens) for key, path in zip(keys, paths, strict=True)]
        if self.lies:
            said = [[second_guess(self.texts[key])] for key in keys]
        self.known.update(self.client.outcomes(list(zip(keys, said, strict=True))))
        for key, tokens in zip(keys, said, strict=True):
            self.texts[key] = tokens[-1]
            self.left[key] -= len(tokens)
            if self.left[key] <= 0:
                self.client.forget(key)
                del self.texts[key], self.left[key]

    def _begin(self) -> None:
        self.num_begun += 1
        key = self.num_begun
        # No two texts of anybody begin alike.
        tokens = [
            2 + (self.offset * 97 + key * 13 + place * (1 + key % 7)) % 398 for place in range(self.prompt)
        ]
        self.client.follow(key, tokens, len(tokens), Sampling(seed=1), 3000)
        self.texts[key], self.left[key] = tokens[-1], self.max_tokens

    @property
    def hit_rate(self) -> float:
        judged = sum(self.known.values())
        return self.known[Knowledge.HIT] / max(1, judged)


def wants(tenants: Tenants, name: str) -> bool:
    """Whether it would have had more rows in the last step."""
    return name in tenants._numbers and bool(tenants._wants[tenants._numbers[name]])


class CountingModel(RuledModel):
    """Counts for whom it computes, whatever the draft's own accounts say."""

    def __init__(self) -> None:
        self.texts: Mapping[int, DraftSession] = {}
        self.rows: Counter[str] = Counter()
        """By tenant."""
        self.seconds = 0.0
        """What its forwards have taken."""

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        self.seconds += STEP
        for row in rows.sequence.tolist():
            self.rows[self.texts[row].tenant] += 1
        for each in chunks:
            self.rows[self.texts[each.row].tenant] += len(each.tokens)
        return super().forward(rows, tables, chunks)


class Crowd:
    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        *,
        sequences: int = 64,
        width: int = 32,
        prefill_chunk: int = 128,
        model: CountingModel | None = None,
        num_blocks: int = NUM_BLOCKS,
    ) -> None:
        self.now = 0.0
        self.hub = Hub()
        shape = shape_of(sequences, 2 * LOOKAHEAD, width=width, slots=128)
        self.model = model or CountingModel()
        self.scheduler: DraftScheduler = scheduler_of(
            self.model,
            prefill_chunk=prefill_chunk,
            shape=shape,
            weights=weights or {},
            clock=lambda: self.model.seconds,
            num_blocks=num_blocks,
        )
        self.model.texts = self.scheduler._sessions
        self.service = DraftServer(self.scheduler, self.hub, hello("draft"), self.clock)
        self.targets: dict[str, Target] = {}
        self.wanting: list[dict[str, bool]] = []
        """At each tick, who would have had more."""
        self.rows: list[dict[str, int]] = []
        """At each tick, what was computed for each since the start."""

    def clock(self) -> float:
        return self.now

    def client(self, name: str, key: str | None = None) -> DraftClient:
        """One that is greeted; its key is its name unless told otherwise."""
        source = Source(self, name.encode(), name if key is None else key)
        client = DraftClient(FixedSources(source), lookahead=LOOKAHEAD, clock=self.clock)
        while not client.is_ready:
            client.pool.tend()
            self.service.turn(0.0)
            client.pool.read()
        return client

    def add(
        self,
        name: str,
        batch: int,
        *,
        prompt: int = 32,
        max_tokens: int = 400,
        lies: bool = False,
        key: str | None = None,
    ) -> Target:
        target = Target(self.client(name, key), len(self.targets), batch, prompt, max_tokens, lies=lies)
        self.targets[name] = target
        return target

    def kill(self, name: str) -> None:
        """It says nothing more, and hears nothing."""
        del self.targets[name], self.hub.outboxes[name.encode()]

    def run(self, ticks: int, *, per_round: int = 5) -> None:
        for _ in range(ticks):
            for place, target in enumerate(self.targets.values()):
                target.client.pool.read()
                # Rounds of several targets do not end at once.
                if (len(self.rows) + place) % per_round == 0:
                    target.round()
            self.service.turn(0.0)
            self.now += STEP
            self._note()
        self.service.check_integrity()

    def _note(self) -> None:
        tenants = self.scheduler.tenants
        self.rows.append({name: self.model.rows[name] for name in self.targets})
        self.wanting.append({name: wants(tenants, name) for name in self.targets})

    def shares(self, first: int, last: int) -> dict[str, float]:
        """Of the rows of some ticks."""
        had = {name: self.rows[last][name] - self.rows[first].get(name, 0) for name in self.targets}
        return {name: count / sum(had.values()) for name, count in had.items()}

    def windows_of_want(self, length: int) -> list[tuple[int, int]]:
        """Ticks, first and last, between which everyone would always have had more."""
        found, first = list[tuple[int, int]](), 0
        for tick, wanting in enumerate(self.wanting):
            if not all(wanting.values()):
                first = tick + 1
            elif tick - first >= length:
                found.append((first, tick))
                first = tick
        return found
