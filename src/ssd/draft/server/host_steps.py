"""Steps on arrays: the host computes all but the forward, and each step ends before the next begins.

A step is: select rows, add runs (guesses by n-gram), forward, choose children, attach them. The host edits
logits where parameters need it (host_edits.py). Knows texts and the model's interface;
does not know outcomes' order, peers or tenants' names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ssd.draft.server.host_edits import EditedRows, LogitEdits, Paths, TextEdits, edits_of
from ssd.draft.server.session import DraftSession, Longs
from ssd.draft.server.steps import Flags, GrowthResult, StepInput
from ssd.draft.tree.children import ChildChooser, ChosenChildren
from ssd.draft.tree.forest import Forest, TokenRun, fresh_width
from ssd.draft.tree.model import ForestModel


@dataclass(frozen=True, slots=True)
class EndedStep:
    result: GrowthResult

    def collect(self) -> GrowthResult:
        return self.result


class HostSteps:
    depth = 0

    def __init__(
        self, forest: Forest, model: ForestModel, children: ChildChooser, head_tokens: Tensor | None = None
    ) -> None:
        self.forest = forest
        self._model, self._children = model, children
        self._logit_edits = LogitEdits(head_tokens)
        self._sessions: dict[int, DraftSession] = {}
        """By row of the tables."""
        self._edited: dict[int, TextEdits] = {}
        """By row: how to edit the logits of sessions with penalties, bias, bad words or a minimum length."""

    def open(self, session: DraftSession, *, num_computed: int, calibration_part: int) -> None:
        forest = self.forest
        self._sessions[session.row] = session
        if (edits := edits_of(session)) is not None:
            self._edited[session.row] = edits
        session.write_to(forest, num_computed=num_computed, calibration_part=calibration_part)
        forest.narrow(max(self._sessions))

    def close(self, session: DraftSession) -> None:
        del self._sessions[session.row]
        self._edited.pop(session.row, None)
        self.forest.tables.is_live[session.row] = False
        self.forest.narrow(max(self._sessions, default=0))

    def write_blocks(self, row: int, start: int, blocks: Sequence[int]) -> None:
        self.forest.tables.blocks[row, start : start + len(blocks)] = blocks

    def apply(self, count: Longs, tokens: Longs) -> None:
        forest = self.forest
        forest.outcomes.count[:], forest.outcomes.tokens[:] = count, tokens
        forest.apply()
        self._model.move(forest.moves)

    def flush(self) -> None:
        """Nothing waits."""

    def launch(self, given: StepInput) -> EndedStep:
        forest, tables = self.forest, self.forest.tables
        tables.is_live[:], tables.steps_left[:] = given.live, given.steps_left
        forest.is_shared = given.usage is not None
        if given.usage is not None:
            usage = forest.usage
            usage.tenant[:], usage.used[:] = given.usage.tenant, given.usage.used
            usage.weight[:] = given.usage.weight
        forest.select()
        own = forest.rows
        if not len(own.sequence) and not given.chunks:
            return EndedStep(self._result(own.sequence, own.is_read, own.sequence))
        runs = find_runs(forest, self._sessions) if forest.shape.lookup else []
        forest.load_runs(runs)
        if runs:
            forest.lay_runs()
        logits = self._model.forward(forest.rows, tables, given.chunks)
        forest.attach(self._choose_children(logits))
        of_runs = forest.rows.sequence[len(own.sequence) :]
        return EndedStep(self._result(own.sequence, own.is_read, of_runs))

    def _result(self, sequence: Longs, is_read: Flags, run_sequence: Longs) -> GrowthResult:
        forest = self.forest
        # Where no row was selected, nothing was attached.
        fresh = forest.fresh if len(sequence) else np.zeros((0, fresh_width(forest.shape)), np.int32)
        num_computed = forest.tables.num_computed.copy()
        return GrowthResult(fresh, sequence, is_read, run_sequence, forest.usage.wanted, num_computed)

    def _choose_children(self, logits: Tensor) -> ChosenChildren:
        """The children of each row, by its logits and parameters."""
        forest = self.forest
        if self._edited:
            self._logit_edits.apply(logits, EditedRows(forest, self._edited))
        return self._children.of(logits, forest.tables, forest.rows)


def find_runs(forest: Forest, texts: dict[int, DraftSession]) -> list[TokenRun]:
    """Finds at most `lookup` tokens of runs, below roots that the step reads, then below best nodes."""
    rows, shape = forest.rows, forest.shape
    own = len(rows.home)
    is_first = rows.is_read | (rows.start == np.arange(own))
    firsts = np.flatnonzero(rows.attaches & is_first)
    num_taken = np.bincount(rows.sequence, rows.attaches & ~rows.is_read)
    budget, found, paths = shape.lookup, list[TokenRun](), Paths(forest)
    for row in _in_turn(forest, firsts):
        if not budget:
            break
        sequence = int(rows.home[row])
        tokens = texts[sequence].guess(paths.to(row), budget)
        if tokens:
            is_used = forest.tables.is_used[sequence, : shape.slots]
            room = shape.slots - int(is_used.sum() + num_taken[sequence])
            tokens = tokens[: max(0, room)]
        if tokens:
            found.append(TokenRun(row, tokens))
            budget -= len(tokens)
    return found


def _in_turn(forest: Forest, firsts: Longs) -> list[int]:
    """Rows that runs may start from, in the order in which they are tried."""
    if len(firsts) > 1:
        rows, tables = forest.rows, forest.tables
        home, keys = rows.home[firsts], rows.key[firsts]
        # New texts come last: their prompts are read in this step.
        lengths = tables.is_new[home] * tables.length[home]
        firsts = firsts[np.lexsort((keys, lengths, ~rows.is_read[firsts]))]
    found: list[int] = firsts.tolist()
    return found
