"""What a draft step costs beside its forward: today's draft and the forest, in turns, on one core.

    python -m benchmarks.draft_host [--batch 1 64] [--steps 3] [--rounds 200] [--lookahead 8]

A rule (ruled.py) stands for the model. A round brings an outcome for every sequence and takes some steps,
each with its frames put on the wire. `step` is all of it but the forward; `host` is that without selecting,
attaching and applying, and the choice of children (on a GPU: `draft_step_cost`). ms a step, best/p50/p90 of
the rounds: where others compute too, the best says more.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.flags import parser
from benchmarks.in_turns import percentiles
from benchmarks.ruled import (
    BLOCK,
    CONTEXT,
    LOOKUP,
    NUM_BLOCKS,
    SLOTS,
    VOCAB,
    WIDTH,
    RuledModel,
    logits_of,
    prompt_of,
    shape_of,
)
from ssd.attention.inputs import SequenceInput
from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import Nodes, Open, Sampling, pack_ints
from ssd.draft.server.host_steps import HostSteps
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.arrays import NumpyArrays
from ssd.draft.tree.children import ChosenChildren, LooseChildren
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Shape, Tables, TreeRows
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import KVPool, PoolShape
from tests.draft.tree.oracle.grower import Grower, GrowthLimits
from tests.draft.tree.oracle.growth import growth_policy
from tests.draft.tree.oracle.session import Session
from tests.row_runner import RowRunner

FLAGS = {"batch": [1, 64], "steps": 3, "rounds": 200, "lookahead": 8}
WARM_UP = 10


class Watch:
    """Seconds spent in what is not the host's: the forward, and what a device would compute."""

    def __init__(self) -> None:
        self.forward = self.device = 0.0

    def on_device(self, action: Callable[..., Any], *arguments: Any) -> Any:
        started = time.perf_counter()
        found = action(*arguments)
        self.device += time.perf_counter() - started
        return found


class Side(Protocol):
    watch: Watch

    def open(self, number: int, opening: Open) -> None: ...
    def advance(self, number: int, n: int, tokens: Sequence[int]) -> None: ...
    def step(self) -> Nodes:
        """A step's frames, as they travel."""
        ...


class Today(RowRunner):
    """The scheduler that was the draft's before the forest: now what tests compare it with."""

    def __init__(self) -> None:
        self.watch = Watch()
        shape = PoolShape(1, 1, 8, NUM_BLOCKS, BLOCK, torch.float32, torch.device("cpu"), 512, 64)
        limits = GrowthLimits(
            width=WIDTH, lookup=LOOKUP, max_grown=SLOTS, max_model_len=CONTEXT, prefill_chunk=1 << 20
        )
        blocks, policy = BlockManager(NUM_BLOCKS, BLOCK), growth_policy("value", width=WIDTH)
        self._scheduler = Grower(self, KVPool(shape), blocks, limits, policy)
        self._sessions: dict[int, Session] = {}

    def forward(self, rows: Sequence[SequenceInput]) -> Tensor:
        started = time.perf_counter()
        logits = logits_of(rows, errs=True)
        self.watch.forward += time.perf_counter() - started
        return logits

    def open(self, number: int, opening: Open) -> None:
        self._sessions[number] = Session(opening, max_len=CONTEXT)
        self._scheduler.open(number, self._sessions[number])

    def advance(self, number: int, n: int, tokens: Sequence[int]) -> None:
        session = self._sessions[number]
        session.note_arrival(session._num_sent)
        self._scheduler.advance(number, n, tokens)

    def step(self) -> Nodes:
        return Nodes.of(list(self._scheduler.step()[0].values()))


class WatchedForest(Forest):
    def __init__(self, shape: Shape, watch: Watch) -> None:
        super().__init__(NumpyArrays(), shape)
        self._watch = watch

    def select(self) -> None:
        self._watch.on_device(super().select)

    def lay_runs(self) -> None:
        self._watch.on_device(super().lay_runs)

    def attach(self, chosen: ChosenChildren) -> None:
        self._watch.on_device(super().attach, chosen)

    def apply(self) -> None:
        self._watch.on_device(super().apply)


class InForest(RuledModel):
    def __init__(self, batch: int, lookahead: int) -> None:
        self.watch = Watch()
        shape = shape_of(batch, lookahead)
        self._loose = LooseChildren(shape.children)
        limits = HostLimits(prefill_chunk=1 << 20, max_model_len=CONTEXT)
        steps = HostSteps(WatchedForest(shape, self.watch), self, self)
        # On a clock that stands, every step is as wide as it may be.
        self._scheduler = DraftScheduler(steps, BlockManager(NUM_BLOCKS, BLOCK), limits, clock=lambda: 0.0)
        self._sessions: dict[int, DraftSession] = {}

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        started = time.perf_counter()
        logits = super().forward(rows, tables, chunks)
        self.watch.forward += time.perf_counter() - started
        return logits

    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren:
        found: ChosenChildren = self.watch.on_device(self._loose.of, logits, tables, rows)
        return found

    def open(self, number: int, opening: Open) -> None:
        self._sessions[number] = DraftSession(opening, max_len=CONTEXT)
        self._scheduler.open(self._sessions[number])

    def advance(self, number: int, n: int, tokens: Sequence[int]) -> None:
        session = self._sessions[number]
        session.note_arrival(session.num_sent)
        self._scheduler.advance(session, n, tokens)

    def step(self) -> Nodes:
        frames, _num_rows = self._scheduler.grow()
        return frames.message() if frames else Nodes(b"", b"", b"")


def outcome(last: int, lookahead: int) -> list[int]:
    """What the target says: the draft foresees it up to its first error."""
    found = [(31 * last + 7) % (VOCAB - 2) + 2]
    while len(found) <= lookahead and (found[-2:-1] or [last])[0] % 10:
        found.append((31 * found[-1] + 7) % (VOCAB - 2) + 2)
    return found


class Rounds:
    """The same rounds for each side."""

    def __init__(self, side: Side, batch: int, steps: int, lookahead: int) -> None:
        self._side, self._steps, self._lookahead = side, steps, lookahead
        self._lasts = [prompt_of(index)[-1] for index in range(batch)]
        self._lengths = [len(prompt_of(index)) for index in range(batch)]
        self._n = 0
        self.whole: list[float] = []
        self.host: list[float] = []
        for index in range(batch):
            prompt = prompt_of(index)
            opening = Open(index, 1, pack_ints(prompt), len(prompt), 1 << 20, lookahead, Sampling(seed=0))
            side.open(index, opening)
        for _ in range(steps):
            side.step()

    def play(self, *, keep: bool) -> None:
        self._n += 1
        told = [outcome(last, self._lookahead) for last in self._lasts]
        self._lasts = [each[-1] for each in told]
        watch = self._side.watch
        watch.forward = watch.device = 0.0
        started = time.perf_counter()
        for number, tokens in enumerate(told):
            self._side.advance(number, self._n, tokens)
        for _ in range(self._steps):
            encode([self._side.step()])
        spent = time.perf_counter() - started - watch.forward
        if keep:
            self.whole.append(1e3 * spent / self._steps)
            self.host.append(1e3 * (spent - watch.device) / self._steps)


def measure(batch: int, steps: int, rounds: int, lookahead: int) -> None:
    sides: dict[str, Side] = {
        "today": Today(),
        "arrays": InForest(batch, lookahead),
    }
    players = {name: Rounds(side, batch, steps, lookahead) for name, side in sides.items()}
    for number in range(rounds + WARM_UP):
        for player in players.values():
            player.play(keep=number >= WARM_UP)
    base = min(players["today"].whole), *percentiles(players["today"].whole, 50)
    for name, player in players.items():
        step, host = ((min(each), *percentiles(each, 50, 90)) for each in (player.whole, player.host))
        line = "batch {:<4} {:<8} step {:.3f}/{:.3f}/{:.3f}".format(batch, name, *step)
        line += f"  today's over it {base[0] / step[0]:.2f}/{base[1] / step[1]:.2f}"
        if name != "today":
            line += "  host {:.3f}/{:.3f}/{:.3f}".format(*host)
        print(line, flush=True)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    for batch in options.batch:
        measure(batch, options.steps, options.rounds, options.lookahead)


if __name__ == "__main__":
    main()
