"""Steps on a GPU: captured, with one upload and one read each, and launched before the last one is read.

A step replays up to five graphs: apply outcomes; select rows, find runs and compute the forward; edit logits;
choose children; attach them. The host copies its columns to the device in one copy, from pinned memory; the
result is copied back to pinned memory after the step, and read when the next one has been launched
(step_buffers.py). Steps of few rows are captured too (`BUCKETS`): padding costs a device as much as work.

Knows sessions and tables; does not know peers or the order of outcomes. Never run on a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.draft.server.session import DraftSession, Longs
from ssd.draft.server.step_buffers import NEW_BLOCKS, InputColumns, PinnedBuffer, ResultLayout
from ssd.draft.server.steps import GrowthResult, StepInput
from ssd.draft.tree.children import ChildChooser, ChosenChildren
from ssd.draft.tree.device_edits import DeviceEdits, TokenRules
from ssd.draft.tree.device_news import NewBlocks, NewsWriter
from ssd.draft.tree.device_runs import RecentText, RunFinder, empty_paths
from ssd.draft.tree.forest import Forest, ForestTables
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Moves, Shape, Tables, TreeRows
from ssd.ngram import WINDOW
from ssd.runtime.capture import Capture
from ssd.runtime.gpu_device import EndMark

BUCKETS = (16, 32, 64)
"""Rows of the captured steps, runs included, below the largest."""
_NEARLY = 0.9
"""A bucket that holds this share of the rows is taken: unread tokens may wait for the next step."""


class DeviceModel(Protocol):
    """The draft model, as a fixed list of operations over all rows."""

    @property
    def num_columns(self) -> int:
        """Columns of the logits."""
        ...

    def read(self, chunks: Sequence[PrefillChunk]) -> None: ...
    def logits(self, rows: TreeRows, tables: Tables) -> Tensor: ...
    def move(self, moves: Moves) -> None: ...


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """What steps of any number of rows are made of."""

    device: torch.device
    make_forest: Callable[[Shape, ForestTables | None], Forest]
    model: DeviceModel
    plain: ChildChooser
    truncating: ChildChooser
    """Also truncates (top_k, top_p, min_p), which costs more."""
    head_tokens: Tensor | None
    capture: Capture
    make_finder: Callable[[Shape, torch.device], RunFinder] = RunFinder
    make_edits: Callable[[Shape, int, Tensor | None, torch.device], DeviceEdits] = DeviceEdits
    make_news_writer: Callable[[RecentText, DeviceEdits], NewsWriter] = NewsWriter


@dataclass(frozen=True, slots=True)
class QueuedStep:
    end: EndMark
    result: NDArray[np.int32]
    layout: ResultLayout

    def collect(self) -> GrowthResult:
        self.end.wait()
        return self.layout.read(self.result)


class CapturedStep:
    """The graphs of a step of one number of rows."""

    def __init__(
        self, parts: DeviceParts, forest: Forest, recent: RecentText, edits: DeviceEdits, logits: Tensor
    ) -> None:
        """`logits`: memory for at least the rows of this step."""
        shape, device = forest.shape, parts.device
        num_rows = shape.num_rows + shape.lookup
        self.forest, self.logits = forest, logits[:num_rows]
        self._parts, self._recent, self._edits = parts, recent, edits
        self._finder = parts.make_finder(shape, device)
        self._paths = empty_paths(shape, num_rows, device)
        self.chosen: ChosenChildren = (
            torch.zeros(num_rows, shape.children, dtype=torch.long, device=device),
            torch.full((num_rows, shape.children), -torch.inf, device=device),
        )
        self.layout = ResultLayout.of(shape)
        self.result = torch.zeros(self.layout.size, dtype=torch.int32, device=device)
        """All that the host reads of a step."""
        forest.fresh = self.result[: self.layout.sequence.start].view(num_rows, -1)
        capture = parts.capture
        self.grow = capture(self._grow)
        self.edit = capture(self._edit)
        self.choose = {
            truncates: capture(lambda each=each: self._choose(each))  # type: ignore[misc]
            for truncates, each in ((False, parts.plain), (True, parts.truncating))
        }
        self.attach = capture(self._attach)

    def _grow(self) -> None:
        forest, tables = self.forest, self.forest.tables
        forest.select()
        own = forest.rows.part(0, forest.shape.num_rows)
        self._finder.find(tables, own, self._recent, forest.runs, self._paths)
        if forest.shape.lookup:
            forest.lay_runs()
        self.logits.copy_(self._parts.model.logits(forest.rows, tables))

    def _edit(self) -> None:
        self._edits.apply(self.logits, self.forest.tables, self.forest.rows, self._paths, self._recent)

    def _choose(self, children: ChildChooser) -> None:
        found = children.of(self.logits, self.forest.tables, self.forest.rows)
        for table, values in zip(self.chosen, found, strict=True):
            # There are fewer where a vocabulary is smaller than a family.
            table[:, : values.shape[1]].copy_(values)

    def _attach(self) -> None:
        forest = self.forest
        forest.attach(self.chosen)
        rows, own = forest.rows, forest.shape.num_rows
        of_rows = rows.sequence[:own], rows.is_read[:own], rows.sequence[own:]
        learned = torch.cat((*of_rows, forest.usage.wanted, forest.tables.num_computed))
        self.result[forest.fresh.numel() :].copy_(learned)


class DeviceSteps:
    def __init__(
        self, parts: DeviceParts, shape: Shape, *, depth: int = 1, buckets: Sequence[int] = BUCKETS
    ) -> None:
        """`depth`: steps in flight when the next one is launched; `buckets`: rows of smaller steps."""
        self.depth, self._parts = depth, parts
        device = parts.device
        self._inputs = InputColumns(shape, device, num_staged=depth + 1)
        # Not in inference mode: the scheduler writes to tables too.
        tables = self._inputs.in_tables(parts.make_forest(shape, None).shared)
        with torch.inference_mode():
            self._recent = RecentText.of(shape, device)
            self._edits = parts.make_edits(shape, parts.model.num_columns, parts.head_tokens, device)
            self._news = parts.make_news_writer(self._recent, self._edits)
            self._steps = self._captured(shape, tables, buckets)
            self.forest = self._steps[-1].forest
            self._apply = parts.capture(self._apply_changes)
        places = [PinnedBuffer.of(self._steps[-1].layout.size, torch.int32, device) for _ in range(depth + 1)]
        self._results = [[each.leading(step.layout.size) for each in places] for step in self._steps]
        """By captured step, and by number of a step in flight."""
        self._number = 0
        self.latest = self._steps[-1]
        """The step that was launched last."""
        self._edited: set[int] = set()
        self._truncating: set[int] = set()

    def _captured(self, shape: Shape, tables: ForestTables, buckets: Sequence[int]) -> list[CapturedStep]:
        """By rising number of rows. The largest is captured first: others then reuse its memory."""
        parts, most = self._parts, shape.num_rows + shape.lookup
        sizes = [each for each in buckets if shape.width + shape.lookup <= each < most]
        logits = torch.zeros(most, parts.model.num_columns, device=parts.device)
        found = list[CapturedStep]()
        for size in sorted([*sizes, most], reverse=True):
            forest = parts.make_forest(replace(shape, rows=size - shape.lookup), tables)
            found.insert(0, CapturedStep(parts, forest, self._recent, self._edits, logits))
        return found

    @torch.inference_mode()
    def open(self, session: DraftSession, *, num_computed: int, calibration_part: int) -> None:
        self.flush()
        row, params = session.row, session.params
        session.write_to(self.forest, num_computed=num_computed, calibration_part=calibration_part)
        self._write_recent(row, session.tokens)
        if (rules := rules_of(session)) is not None:
            self._edits.enter(row, rules)
            self._edited.add(row)
        if params.truncated:
            self._truncating.add(row)

    def close(self, session: DraftSession) -> None:
        row = session.row
        self._truncating.discard(row)
        if row in self._edited:
            self._edited.remove(row)
            with torch.inference_mode():
                self._edits.leave(row)

    @torch.inference_mode()
    def write_blocks(self, row: int, start: int, blocks: Sequence[int]) -> None:
        inputs = self._inputs
        if start and len(blocks) <= NEW_BLOCKS and not inputs.num_blocks[row]:
            inputs.add_blocks(row, start, blocks)
            return
        if inputs.num_blocks[row]:
            self.flush()
        held = self.forest.tables.blocks[row, start : start + len(blocks)]
        held.copy_(torch.tensor(blocks), non_blocking=True)

    def apply(self, count: Longs, tokens: Longs) -> None:
        if self._inputs.count.any():
            self.flush()
        self._inputs.add_outcomes(count, tokens)

    @torch.inference_mode()
    def flush(self) -> None:
        if self._inputs.has_changes:
            self._inputs.upload(None)
            self._apply()

    @torch.inference_mode()
    def launch(self, given: StepInput) -> QueuedStep:
        inputs, number = self._inputs, self._number
        self._number += 1
        inputs.live[:], inputs.steps_left[:] = given.live, given.steps_left
        inputs.set_usage(given.usage)
        has_changes = inputs.has_changes
        inputs.upload(number % (self.depth + 1))
        if has_changes:
            self._apply()
        self._parts.model.read(given.chunks)
        size = self._bucket(given.num_due)
        step = self.latest = self._steps[size]
        step.grow()
        if self._edited:
            step.edit()
        step.choose[bool(self._truncating)]()
        step.attach()
        result = self._results[size][number % (self.depth + 1)]
        result.tensor.copy_(step.result, non_blocking=True)
        return QueuedStep(self._parts.capture.mark_end(), result.array, step.layout)

    def _bucket(self, num_due: int) -> int:
        """The smallest captured step with room for these tokens, or nearly; nodes fit into each."""
        fitting = (n for n, each in enumerate(self._steps) if each.forest.shape.num_rows >= _NEARLY * num_due)
        return next(fitting, len(self._steps) - 1)

    def _apply_changes(self) -> None:
        """Writes decided tokens and new blocks, then applies outcomes and moves keys."""
        inputs, forest = self._inputs, self.forest
        columns = (inputs.on_device(name) for name in ("first_block", "num_blocks", "blocks"))
        self._news.write(forest.tables, forest.outcomes, NewBlocks(*columns))
        forest.apply()
        self._parts.model.move(forest.moves)

    def _write_recent(self, row: int, tokens: Sequence[int]) -> None:
        first = max(0, len(tokens) - WINDOW)
        held = np.full(WINDOW + 1, -1)
        held[np.arange(first, len(tokens)) % WINDOW] = tokens[first:]
        self._recent.tokens[row].copy_(torch.from_numpy(held), non_blocking=True)


def rules_of(session: DraftSession) -> TokenRules | None:
    """None if no parameter of the session depends on tokens."""
    params, sampling = session.params, session.opening.sampling
    has_minimum = bool(params.min_tokens and sampling.end_ids)
    if not (params.bias or sampling.bad_word_ids or params.penalised or has_minimum):
        return None
    tokens, num_prompt = np.array(session.tokens), session.opening.num_prompt
    penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
    return TokenRules(
        tokens[:num_prompt],
        tokens[num_prompt:],
        penalties,
        params.bias,
        sampling.bad_word_ids,
        params.min_tokens if has_minimum else 0,
    )
