"""Paths, runs, edits and news of texts on a GPU by our kernels; `device_runs.py`, `device_edits.py` and
`device_news.py` are the same by torch.

Never run on a GPU. Import late: Triton takes long to import and is useless without a GPU.
"""

import torch
from torch import Tensor

from ssd.draft.tree.device_edits import DeviceEdits
from ssd.draft.tree.device_news import NewBlocks, NewsWriter
from ssd.draft.tree.device_runs import RecentText, RunFinder
from ssd.draft.tree.forest import RunRows
from ssd.draft.tree.gpu import columns_of
from ssd.draft.tree.tables import OutcomeTable, Shape, Tables, TreeRows
from ssd.kernels.edits import EditRows, EditRules, edit_logits
from ssd.kernels.language import can_launch
from ssd.kernels.tree_families import RunTable
from ssd.kernels.tree_news import BlockNews, TextMemory, write_text_news
from ssd.kernels.tree_outcomes import OutcomeTokens
from ssd.kernels.tree_runs import RunPaths, TextTables, find_runs
from ssd.kernels.trees import StepRows
from ssd.ngram import LONGEST, SHORTEST


class FusedRunFinder(RunFinder):
    def __init__(self, shape: Shape, device: torch.device) -> None:
        super().__init__(shape, device)
        self._takes, self._ages = (
            torch.zeros(shape.num_rows, dtype=torch.long, device=device) for _ in range(2)
        )

    def find(self, tables: Tables, rows: TreeRows, recent: RecentText, runs: RunRows, paths: Tensor) -> None:
        find_runs(
            columns_of(TextTables, tables),
            columns_of(StepRows, rows),
            RunPaths(recent.tokens, paths, self._takes, self._ages),
            columns_of(RunTable, runs),
            SHORTEST,
            LONGEST,
        )


def run_finder_on(shape: Shape, device: torch.device) -> RunFinder:
    is_fused = device.type != "cpu" and can_launch(device)
    return FusedRunFinder(shape, device) if is_fused else RunFinder(shape, device)


class FusedEdits(DeviceEdits):
    def apply(
        self, logits: Tensor, tables: Tables, rows: TreeRows, paths: Tensor, recent: RecentText
    ) -> None:
        """Leaves rows that attach nothing as they are."""
        rules = EditRules(
            self.is_edited,
            self._penalties,
            self.seen,
            self._bias_columns,
            self._biases,
            self._starts,
            self._lasts,
            self._min_length,
            tables.length,
            tables.ends,
            recent.tokens,
        )
        edited = EditRows(rows.sequence, rows.position, rows.attaches, paths)
        edit_logits(logits, rules, edited, self.column_of)


def edits_on(shape: Shape, num_columns: int, head_tokens: Tensor | None, device: torch.device) -> DeviceEdits:
    """`head_tokens`: the tokens of the logits' columns; None: all."""
    is_fused = device.type != "cpu" and can_launch(device)
    return (FusedEdits if is_fused else DeviceEdits)(shape, num_columns, head_tokens, device)


class FusedNewsWriter(NewsWriter):
    def write(self, tables: Tables, outcomes: OutcomeTable, new: NewBlocks) -> None:
        """Counts the tokens of edited sequences only."""
        edits = self._edits
        memory = TextMemory(tables.length, tables.blocks, self._recent.tokens, edits.is_edited, edits.seen)
        said = OutcomeTokens(outcomes.count, outcomes.tokens)
        write_text_news(memory, said, BlockNews(new.first, new.number, new.blocks), edits.column_of)


def news_writer_on(recent: RecentText, edits: DeviceEdits) -> NewsWriter:
    device = recent.tokens.device
    is_fused = device.type != "cpu" and can_launch(device)
    return (FusedNewsWriter if is_fused else NewsWriter)(recent, edits)
