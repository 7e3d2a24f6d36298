"""Grows the trees of all sequences: one forward of the draft model a step.

A step reads what the texts have gained (roots first, long prompts in chunks) and processes the
nodes of highest priority over all trees. Behind the likeliest node it also computes a *run*: the
tokens that followed when the same few tokens stood in the text before. As far as the node's own
children confirm the run, the tree is several tokens deeper for one step.

Knows the draft's KV blocks and its model. Does not know sockets, or who asked.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ssd.attention.inputs import PlainInput
from ssd.draft.protocol.messages import TreePart
from ssd.draft.tree.children import likely_children
from ssd.kvcache.block_manager import BlockManager, OutOfBlocks
from ssd.kvcache.pool import NODES_PER_TREE, KVPool
from ssd.runtime.runner import Runner, forward
from tests.draft.tree.oracle.calibration import Calibration
from tests.draft.tree.oracle.growth import NEVER, GrowthPolicy
from tests.draft.tree.oracle.session import Move, Session
from tests.draft.tree.oracle.tree import UNGROWN


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    width: int
    """Nodes processed in one step."""
    lookup: int = 0
    """Tokens of runs computed in one step, beside its width."""
    num_children: int = 4
    """Tokens prepared after each node."""
    max_grown: int = NODES_PER_TREE
    """Grown nodes of one tree, at most as many as it has slots."""
    prefill_chunk: int = 128
    """Tokens of prompts read in one step."""
    max_model_len: int = 2048


@dataclass(frozen=True, slots=True)
class _Reading:
    session_id: int
    tokens: list[int]
    reaches_root: bool
    run: Sequence[int] = ()
    """Guessed from the text to follow the root."""


@dataclass(frozen=True, slots=True)
class _Growing:
    session_id: int
    nodes: list[int] = field(default_factory=list)
    run: Sequence[int] = ()
    """Guessed from the text to follow the first node."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the logits after a node are, and those of a run behind it."""

    session_id: int
    node: int
    row: int
    run: Sequence[int] = ()
    run_row: int = 0


class OutOfTrees(Exception):  # noqa: N818 - exhaustion is a state here, not an error
    """All tree slots are taken. Expected under load; nothing has been changed."""


class Grower:
    def __init__(
        self,
        runner: Runner,
        pool: KVPool,
        blocks: BlockManager,
        limits: GrowthLimits,
        policy: GrowthPolicy,
        *,
        head_tokens: Tensor | None = None,
        steps_left: Callable[[int], int] = lambda _session_id: 1,
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._blocks = blocks
        self._limits = limits
        self._policy = policy
        self._steps_left = steps_left
        """Of a session, until its next outcome."""
        self._head_tokens = head_tokens
        """Where the draft's head has only some tokens: which."""
        self._sessions: dict[int, Session] = {}
        self._free_trees = list(range(pool.shape.num_trees))
        self._trees: dict[int, int] = {}
        """The tree slots of each session, by number of the tree."""
        self._calibrations = defaultdict[bool, Calibration](Calibration)
        self.is_starved = False
        """A text lacks the blocks to be read, and nobody else computes: somebody has to go."""

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def kv_usage(self) -> float:
        return self._blocks.usage

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    def open(self, session_id: int, session: Session) -> None:
        """Takes a sequence in; OutOfTrees, OutOfBlocks or ValueError where it does not fit."""
        self._check_length(session)
        if not self._free_trees:
            raise OutOfTrees
        session.num_computed = self._blocks.allocate(session_id, session.tokens)
        self._trees[session_id] = self._free_trees.pop()
        session.tree_start = self._pool.shape.tree_start(self._trees[session_id])
        self._sessions[session_id] = session

    def close(self, session_id: int) -> None:
        if self._sessions.pop(session_id, None) is not None:
            self._blocks.free(session_id)
            self._free_trees.append(self._trees.pop(session_id))

    def largest(self) -> int:
        """The session whose blocks would serve most others; of equals, the youngest."""
        return max(self._sessions, key=lambda each: (len(self._blocks.block_table(each)), each))

    def advance(self, session_id: int, n: int, tokens: Sequence[int]) -> None:
        """Applies an outcome; ValueError where the sequence has outgrown the draft."""
        session = self._sessions[session_id]
        if n == session.n + 1:
            calibration = self._calibration_of(session)
            for observation in session.observe(tokens):
                calibration.learn(observation)
        has_room = self._cover(session_id, len(session.tokens) + len(tokens))
        move = session.advance(n, tokens, has_room=has_room)
        if move is not None:
            self._move(session_id, move)
        self._blocks.commit(session_id, session.tokens, session.num_computed, session.num_computed)
        self._check_length(session)

    def step(self) -> tuple[dict[int, TreePart], int]:
        """One forward; the new nodes of each tree it touched, and how many rows it had. 0: nothing to do."""
        readings = self._choose_readings()
        # A text that goes on is read within the width; prompts have their chunk, and starve nobody's tree.
        going_on = (each for each in readings if self._sessions[each.session_id].was_read)
        growings = self._choose_nodes(max(0, self._limits.width - sum(len(each.tokens) for each in going_on)))
        if not readings and not growings:
            self.is_starved = any(True for _ in self._unread())
            return {}, 0
        self.is_starved = False
        readings, growings = self._with_runs(readings, growings)
        rows = [row for each in readings for row in self._reading_rows(each)]
        rows += [self._growing_row(each) for each in growings]
        logits = forward(self._runner, rows)
        self._finish_reading(readings)
        places = self._places(readings, growings)
        self._attach(logits if len(places) == len(logits) else logits[[each.row for each in places]], places)
        for place in places:
            self._attach_run(logits, place)
        touched = dict.fromkeys(place.session_id for place in places)
        frames = {each: frame for each in touched if (frame := self._sessions[each].frame()) is not None}
        return frames, sum(len(row.tokens) for row in rows)

    def check_integrity(self) -> None:
        self._blocks.check_integrity()
        if set(self._blocks.seq_ids) != set(self._sessions) or set(self._trees) != set(self._sessions):
            raise RuntimeError("blocks or tree slots are held by others than the open sequences")
        if sorted([*self._free_trees, *self._trees.values()]) != list(range(self._pool.shape.num_trees)):
            raise RuntimeError("the slots of a tree are held twice, or lost")
        for session in self._sessions.values():
            session.check_integrity()

    def _check_length(self, session: Session) -> None:
        if len(session.tokens) + 2 > self._limits.max_model_len:
            raise ValueError(f"the draft's context ends at {self._limits.max_model_len} tokens")

    def _unread(self) -> Iterator[tuple[int, Session]]:
        for session_id, session in self._sessions.items():
            if not session.is_root_read and session.may_grow:
                yield session_id, session

    def _choose_readings(self) -> list[_Reading]:
        budget, chosen = self._limits.prefill_chunk, list[_Reading]()
        # Short ones first: a root that is one token behind does not wait for another's prompt.
        by_length = sorted(self._unread(), key=lambda item: len(item[1].tokens) - item[1].num_computed)
        for session_id, session in by_length:
            tokens = session.tokens[session.num_computed : session.num_computed + budget]
            if not tokens or not self._cover(session_id, len(session.tokens)):
                continue
            budget -= len(tokens)
            reaches_root = session.num_computed + len(tokens) == len(session.tokens)
            chosen.append(_Reading(session_id, tokens, reaches_root))
        return chosen

    def _choose_nodes(self, count: int) -> list[_Growing]:
        """The nodes of highest priority over all trees, as far as their slots allow."""
        candidates: list[tuple[float, int, int]] = []
        for session_id, session in self._sessions.items():
            free = self._limits.max_grown - session.num_grown
            room = min(count, -(-free // self._steps_left(session_id)))
            if room <= 0 or not session.is_root_read or not session.may_grow:
                continue
            growable = np.flatnonzero(session.growable())
            priorities = self._policy.priorities(session.tree)[growable]
            best = np.argsort(-priorities, kind="stable")[:room]
            candidates += [
                (float(priorities[i]), session_id, int(growable[i])) for i in best if priorities[i] > NEVER
            ]
        growings: dict[int, _Growing] = {}
        for _priority, session_id, node in heapq.nlargest(count, candidates, key=lambda each: each[0]):
            growings.setdefault(session_id, _Growing(session_id)).nodes.append(node)
        return list(growings.values())

    def _run_after(self, session_id: int, node: int, num_new: int, budget: int) -> list[int]:
        """A run behind a node of a step that takes `num_new` places of this tree before it."""
        session = self._sessions[session_id]
        most = min(budget, self._limits.max_grown - session.num_grown - num_new)
        return session.run_after(node, most) if most > 0 else []

    def _with_runs(
        self, readings: Sequence[_Reading], growings: Sequence[_Growing]
    ) -> tuple[list[_Reading], list[_Growing]]:
        """Runs behind the roots that are read, then behind the likeliest nodes, as long as there is room."""
        budget = self._limits.lookup
        read: list[_Reading] = []
        for each in readings:
            root = self._sessions[each.session_id].tree.root
            run = self._run_after(each.session_id, root, 0, budget) if each.reaches_root else []
            read.append(replace(each, run=run))
            budget -= len(run)
        grown: list[_Growing] = []
        for growing in growings:
            count = len(growing.nodes)
            run = self._run_after(growing.session_id, growing.nodes[0], count, budget)
            grown.append(replace(growing, run=run))
            budget -= len(run)
        return read, grown

    def _cover(self, session_id: int, num_slots: int) -> bool:
        try:
            self._blocks.grow(session_id, num_slots)
        except OutOfBlocks:
            return False
        return True

    def _reading_rows(self, reading: _Reading) -> Iterator[PlainInput]:
        """What the text has gained, and a run behind the root, which is no text yet."""
        session = self._sessions[reading.session_id]
        blocks, num_logits = self._blocks.block_table(reading.session_id), int(reading.reaches_root)
        yield PlainInput(reading.tokens, session.num_computed, blocks, num_logits, generated=False)
        if reading.run:
            yield self._tree_row(session, blocks, [], reading.run)

    def _growing_row(self, growing: _Growing) -> PlainInput:
        blocks = self._blocks.block_table(growing.session_id)
        return self._tree_row(self._sessions[growing.session_id], blocks, growing.nodes, growing.run)

    def _tree_row(
        self, session: Session, blocks: Sequence[int], nodes: Sequence[int], run: Sequence[int]
    ) -> PlainInput:
        tokens = [*(session.tree.tokens[node] for node in nodes), *run]
        return PlainInput(
            tokens, 0, blocks, len(tokens), generated=True, branches=session.branches(nodes, run)
        )

    def _finish_reading(self, readings: Sequence[_Reading]) -> None:
        for reading in readings:
            session = self._sessions[reading.session_id]
            session.num_computed += len(reading.tokens)
            session.was_read |= reading.reaches_root
            self._blocks.commit(
                reading.session_id, session.tokens, session.num_computed, session.num_computed
            )

    def _places(self, readings: Sequence[_Reading], growings: Sequence[_Growing]) -> list[_Place]:
        """The nodes whose logits were computed, in the order of the rows."""
        places: list[_Place] = []
        row = 0
        for reading in readings:
            if reading.reaches_root:
                root = self._sessions[reading.session_id].tree.root
                places.append(_Place(reading.session_id, root, row, reading.run, row + 1))
                row += 1 + len(reading.run)
        for growing in growings:
            first, *others = growing.nodes
            run_row = row + len(growing.nodes)
            places.append(_Place(growing.session_id, first, row, growing.run, run_row))
            places += [_Place(growing.session_id, node, row + i) for i, node in enumerate(others, 1)]
            row = run_row + len(growing.run)
        return places

    def _attach_run(self, logits: Tensor, place: _Place) -> None:
        """The nodes of a run are grown as far as the model itself says that they may follow.

        They take places in the order of their rows: behind the step's other nodes of this tree.
        """
        tree, node = self._sessions[place.session_id].tree, place.node
        for row, token in enumerate(place.run, place.run_row):
            child = tree.child(node, token)
            if child is None or tree.slots[child] != UNGROWN:
                return
            self._attach(logits[row : row + 1], [_Place(place.session_id, child, row)])
            node = child

    def _attach(self, logits: Tensor, places: Sequence[_Place]) -> None:
        """The logits' likeliest tokens become children, ranked by the request's noise."""
        owners = [(self._sessions[place.session_id], place.node) for place in places]
        rows = [session.sampling_row(node) for session, node in owners]
        count, head_tokens = self._limits.num_children, self._head_tokens
        found = likely_children(logits, rows, count, head_tokens=head_tokens)
        for (session, node), children in zip(owners, found, strict=True):
            logprobs = self._calibration_of(session).logprobs(children.raws)
            session.grow(node, children.tokens, logprobs, children.raws)

    def _calibration_of(self, session: Session) -> Calibration:
        """Greedy and sampled guesses err in different ways."""
        return self._calibrations[session.params.greedy]

    def _move(self, session_id: int, move: Move) -> None:
        blocks, size = self._blocks.block_table(session_id), self._blocks.block_size
        tree_start = self._sessions[session_id].tree_start
        positions = range(move.start, move.start + len(move.places))
        self._pool.move(
            torch.tensor([tree_start + place for place in move.places]),
            torch.tensor([blocks[position // size] * size + position % size for position in positions]),
        )
