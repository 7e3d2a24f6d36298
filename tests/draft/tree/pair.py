"""The oracle and the draft's scheduler, side by side: the same calls, and frames that must be the same.

`Pair` knows nothing of what is done with it; `play.py` draws that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.ruled import device_steps
from ssd.config import GrowthPolicyName
from ssd.draft.protocol.messages import Open, TreePart
from ssd.draft.server.host_steps import HostSteps
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.server.steps import Steps
from ssd.draft.tree import apply
from ssd.draft.tree.arrays import NumpyArrays
from ssd.draft.tree.children import LooseChildren
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.tables import Shape
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import KVPool, PoolShape
from tests.draft.tree.contexts import ForestRunner, OracleRunner, Texts
from tests.draft.tree.oracle import calibration
from tests.draft.tree.oracle.grower import Grower, GrowthLimits
from tests.draft.tree.oracle.growth import growth_policy
from tests.draft.tree.oracle.session import Session
from tests.runtime.recording import RunAgain

BLOCK = 16
MAX_LEN = 600
PRECISION = 2e-6
_BLOCKS_EACH = 64


@dataclass(frozen=True, slots=True)
class Setup:
    """How many sequences, and how they grow."""

    sequences: int = 4
    width: int = 16
    slots: int = 128
    children: int = 4
    lookahead: int = 8
    vocab: int = 300
    policy: GrowthPolicyName = "value"
    on_tensors: bool = False
    known_vocab: int = 0
    """Of the engine, where it knows fewer tokens."""
    head: int = 0
    """Tokens of a restricted head."""
    lookup: int = 0
    steps: tuple[int, ...] = (0, 1, 1, 1, 2, 3)
    """Of a round, drawn from these."""


class Pair:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        num_blocks = setup.sequences * _BLOCKS_EACH
        texts = Texts(setup.head or setup.vocab)
        head = torch.arange(setup.head) * 2 + 1 if setup.head else None
        cpu = torch.device("cpu")
        pool = KVPool(PoolShape(1, 1, 2, num_blocks, BLOCK, torch.float32, cpu, 64, setup.sequences))
        limits = GrowthLimits(
            width=setup.width,
            lookup=setup.lookup,
            num_children=setup.children,
            max_grown=setup.slots,
            prefill_chunk=1 << 20,
            max_model_len=MAX_LEN,
        )
        blocks = BlockManager(num_blocks, BLOCK, enable_prefix_caching=False)
        policy = growth_policy(setup.policy, width=setup.width)
        oracle = OracleRunner(texts, pool)
        self.oracle = Grower(
            oracle, pool, blocks, limits, policy, head_tokens=head, steps_left=self._steps_left
        )
        shape = Shape(
            setup.sequences,
            setup.width,
            rows=setup.width + 40 * setup.sequences,
            lookup=setup.lookup,
            slots=setup.slots,
            children=setup.children,
            outcome=setup.lookahead + 1,
            ring=256,
            block=BLOCK,
            blocks=_BLOCKS_EACH,
            first_tree_slot=num_blocks * BLOCK,
        )
        model = ForestRunner(texts, shape)
        if setup.on_tensors:
            steps: Steps = device_steps(
                model, shape, RunAgain(), head_tokens=head, policy=setup.policy, depth=0, buckets=()
            )
        else:
            forest = Forest(NumpyArrays(), shape, setup.policy)
            steps = HostSteps(forest, model, LooseChildren(setup.children, head), head)
        self.forest = steps.forest
        # Capturing computes too.
        model.num_forwards = 0
        self.scheduler = DraftScheduler(
            steps,
            BlockManager(num_blocks, BLOCK, enable_prefix_caching=False),
            HostLimits(prefill_chunk=1 << 20, max_model_len=MAX_LEN),
            # A forward takes a second, and nothing else does.
            clock=lambda: float(model.num_forwards),
        )
        self.sessions: dict[int, Session] = {}
        self.drafted: dict[int, DraftSession] = {}
        self.worst = 0.0
        self.num_nodes = self.num_rows = 0

    def open(self, session_id: int, opening: Open) -> None:
        vocab = self.setup.known_vocab or self.setup.vocab
        session = Session(opening, max_len=MAX_LEN, vocab_size=vocab)
        drafted = DraftSession(opening, max_len=MAX_LEN, vocab_size=vocab)
        self.sessions[session_id], self.drafted[session_id] = session, drafted
        self.oracle.open(session_id, session)
        self.scheduler.open(drafted)
        # Equal priorities fall by sequence: in the same order on both sides.
        order = sorted(self.oracle._sessions.items(), key=lambda each: self.drafted[each[0]].row)
        self.oracle._sessions.clear()
        self.oracle._sessions.update(order)

    def close(self, session_id: int) -> None:
        del self.sessions[session_id]
        self.oracle.close(session_id)
        self.scheduler.close(self.drafted.pop(session_id))

    def advance(self, session_id: int, n: int, tokens: Sequence[int]) -> None:
        self.oracle.advance(session_id, n, tokens)
        self.scheduler.advance(self.drafted[session_id], n, tokens)
        assert self.sessions[session_id].is_out_of_sync == self.drafted[session_id].is_out_of_sync

    def note_arrival(self, session_id: int, count: int) -> None:
        self.sessions[session_id].note_arrival(count)
        self.drafted[session_id].note_arrival(count)

    def _steps_left(self, session_id: int) -> int:
        return int(self.scheduler._round_timer.steps_left()[self.drafted[session_id].row])

    def step(self) -> dict[int, TreePart]:
        expected, num_rows = self.oracle.step()
        frames, num_found = self.scheduler.grow()
        by_row = {drafted.row: each for each, drafted in self.drafted.items()}
        found = {by_row[row]: part for row, part in frames.parts()} if frames else {}
        assert num_found == num_rows, f"{num_found} rows instead of {num_rows}"
        assert found.keys() == expected.keys(), "frames of other sequences"
        for each, frame in expected.items():
            self._compare(found[each], frame)
        self.num_rows += num_rows
        return expected

    def resync(self, session_id: int) -> TreePart:
        expected = self.sessions[session_id].full_frame()
        [(_row, found)] = self.scheduler.full_frame(self.drafted[session_id]).parts()
        self._compare(found, expected)
        return expected

    def _compare(self, found: TreePart, expected: TreePart) -> None:
        for name in ("seq", "epoch", "number", "n", "root", "length", "full", "ids", "parents", "tokens"):
            mine, theirs = getattr(found, name), getattr(expected, name)
            assert mine == theirs, f"{name} of sequence {expected.seq}: {mine} instead of {theirs}"
        error = np.abs(np.array(found.logprobs) - np.array(expected.logprobs)).max(initial=0.0)
        assert error <= PRECISION, f"log-probabilities differ by {error}"
        self.worst = max(self.worst, float(error))
        self.num_nodes += len(expected.ids)

    def check(self) -> None:
        """What must hold at any time; the tables against the sessions."""
        self.oracle.check_integrity()
        self.scheduler.check_integrity()


@contextmanager
def without_fading() -> Iterator[None]:
    """Today's counts fade while an outcome is counted, the forest's after it."""
    kept = calibration._MEMORY, apply.MEMORY
    calibration._MEMORY = apply.MEMORY = 1e18
    try:
        yield
    finally:
        calibration._MEMORY, apply.MEMORY = kept
