"""Drafts of the simulated pool: the real server and scheduler, with a stand-in for the forward.

A `DraftHost` is an address at which one process after the other serves. Each has its own instance id and
clock. A step takes virtual time; between steps the process waits for frames as `DraftServer.run` does.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ssd.draft.protocol.messages import PROTOCOL_VERSION, Hello
from ssd.draft.server.host_steps import HostSteps
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.server import DraftServer
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.arrays import NumpyArrays
from ssd.draft.tree.children import LooseChildren
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Shape, Tables, TreeRows
from ssd.kvcache.block_manager import BlockManager
from tests.pool.links import DraftEnd, Network
from tests.pool.texts import CHILDREN, VOCAB, QuickChildren, QuickForward, RuledForward
from tests.pool.versions import THIS, Version
from tests.pool.world import Process

BLOCK = 16
_IDLE_SECONDS = 0.25
"""As `DraftServer.run` waits for a frame."""
_TURN_SECONDS = 100e-6
"""Of the host, for a turn."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What a draft is started with."""

    address: str
    sequences: int = 8
    width: int = 16
    chunk: int = 64
    num_blocks: int = 256
    context: int = 1024
    lookahead: int = 4
    step_seconds: float = 0.005
    row_seconds: float = 50e-6
    weights: Mapping[str, float] = field(default_factory=dict)
    name: str = "draft"
    vocab_size: int = VOCAB
    samples: bool = False
    """Some requests sample: children are chosen by logits, as in a real draft."""

    @property
    def host(self) -> str:
        return self.address.removeprefix("tcp://").split(":")[0]

    def shape(self) -> Shape:
        return Shape(
            self.sequences,
            self.width,
            rows=self.width + self.sequences * (2 * self.lookahead + 2),
            lookup=4,
            slots=64,
            children=CHILDREN,
            outcome=2 * self.lookahead + 1,
            block=BLOCK,
            blocks=self.context // BLOCK,
            first_tree_slot=self.num_blocks * BLOCK,
        )


class TimedForward:
    """Takes the time of a step, and counts rows by tenant independently of the scheduler's accounts."""

    def __init__(self, forward: RuledForward, process: Process, plan: DraftPlan) -> None:
        self._forward, self._process, self._plan = forward, process, plan
        self.sessions: Mapping[int, DraftSession] = {}
        self.rows = Counter[str]()

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        count = len(rows.sequence) + sum(len(each.tokens) for each in chunks)
        self._process.work(self._plan.step_seconds + count * self._plan.row_seconds)
        for row in rows.sequence.tolist():
            self.rows[self.sessions[row].tenant] += 1
        for each in chunks:
            self.rows[self.sessions[each.row].tenant] += len(each.tokens)
        return self._forward.forward(rows, tables, chunks)

    def move(self, moves: object) -> None:
        pass


class DraftHost:
    def __init__(self, network: Network, plan: DraftPlan, clock_at: Callable[[], float]) -> None:
        """`clock_at`: what the clock of a process that starts shows."""
        self.network, self.plan, self._clock_at = network, plan, clock_at
        self.num_started = 0
        self.version = THIS
        self.start()

    @property
    def host(self) -> str:
        return self.plan.host

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive

    def start(self, plan: DraftPlan | None = None, version: Version | None = None) -> None:
        """Also as another version of the program, or with other settings."""
        plan, self.version = plan or self.plan, version or self.version
        self.plan = plan
        world = self.network.world
        self.num_started += 1
        self.process = Process(world, self.host, started_at=self._clock_at())
        self.end = DraftEnd(self.network, self.process, plan.address, self._wake, self.version.frame)
        model: RuledForward = RuledForward() if plan.samples else QuickForward()
        self.model = TimedForward(model, self.process, plan)
        children = LooseChildren(CHILDREN) if plan.samples else QuickChildren()
        steps = HostSteps(Forest(NumpyArrays(), plan.shape()), self.model, children)
        limits = HostLimits(plan.chunk, plan.context, plan.weights)
        blocks = BlockManager(plan.num_blocks, BLOCK)
        self.scheduler = DraftScheduler(steps, blocks, limits, clock=self.process.clock)
        self.model.sessions = self.scheduler._sessions
        instance = f"{self.host} {self.num_started}"
        hello = Hello(PROTOCOL_VERSION, "a rule", plan.vocab_size, plan.name, instance, plan.context)
        self.server = DraftServer(self.scheduler, self.end, self.version.hello(hello), self.process.clock)
        self.turns = 0
        self._is_due = False
        self._wait(0.0)

    def kill(self) -> None:
        self.process.end()
        self.end.close()

    def vanish(self) -> None:
        """With its machine."""
        self.process.end()
        self.end.vanish()

    def drain(self, seconds: float = 0.0) -> None:
        """SIGTERM: takes no new sequences for a while, then says goodbye, as `DraftServer.run` does."""
        process, end = self.process, self.end

        def finish() -> None:
            process.end()
            end.close()

        def leave() -> None:
            self.server.run(lambda: True)
            self.network.world.after(process.busy, finish)

        self.server.drains = seconds > 0
        process.after(seconds, leave)

    def freeze(self, seconds: float) -> None:
        process = self.process
        process.freeze(seconds)
        for line in self.end:
            line.note_silence()
        self.network.world.after(seconds, lambda: self._thaw(process))

    def _thaw(self, process: Process) -> None:
        if self.process is process and process.is_alive and not process.is_frozen:
            for line in self.end:
                if not self.network.is_cut(self.host, line.engine.host):
                    line.note_sound()

    def _wake(self) -> None:
        if not self._is_due:
            self._wait(0.0)

    def _wait(self, seconds: float) -> None:
        """Until its next turn, unless a frame wakes it."""
        self.turns += 1
        number, process = self.turns, self.process
        self._is_due = seconds == 0.0
        process.after(seconds, lambda: self._turn(number))

    def _turn(self, number: int) -> None:
        if number != self.turns:
            return  # A frame came first.
        self._is_due = True  # Frames that come meanwhile are read in the next turn.
        is_busy = self.server.turn(0.0)
        self.process.work(_TURN_SECONDS)
        self._wait(0.0 if is_busy or self.end.num_unread else _IDLE_SECONDS)
