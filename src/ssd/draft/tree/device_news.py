"""Writes what a step's upload says of texts: decided tokens, and new entries of block tables.

Runs before `Forest.apply`: `Tables.length` is still the length before these tokens. Knows tables; does
not know trees.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.draft.tree.device_edits import DeviceEdits
from ssd.draft.tree.device_runs import RecentText
from ssd.draft.tree.tables import OutcomeTable, Tables


@dataclass(frozen=True, slots=True)
class NewBlocks:
    """New entries of each sequence's block table."""

    first: Tensor  # [S]
    number: Tensor  # [S]
    blocks: Tensor  # [S, N]


class NewsWriter:
    def __init__(self, recent: RecentText, edits: DeviceEdits) -> None:
        self._recent, self._edits = recent, edits

    def write(self, tables: Tables, outcomes: OutcomeTable, new: NewBlocks) -> None:
        number = new.number[:, None]
        place = torch.arange(new.blocks.shape[1], device=number.device)
        is_new = place < number
        here = torch.arange(len(number), device=number.device)[:, None]
        # Row 0 is scratch.
        rows = torch.where(is_new, here, 0)
        tables.blocks[rows, torch.where(is_new, new.first[:, None] + place, 0)] = new.blocks
        self._recent.append(tables.length, outcomes.count, outcomes.tokens)
        self._edits.note_outcomes(outcomes.count, outcomes.tokens)
