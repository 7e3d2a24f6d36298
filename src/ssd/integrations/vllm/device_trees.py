"""A copy of the mirrors' trees on the target's device, from which a kernel chooses drafted tokens.

Each step uploads one buffer: where each request's tree begins, and the nodes that changed since the last
step. Knows mirrors and tensors. Does not know vLLM, and never waits for the device.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ssd.config import MAX_CHILDREN
from ssd.draft.client.mirrors import SLOTS, Mirrors
from ssd.draft.protocol.messages import Ints, Longs
from ssd.kernels.walk import COLUMNS, HEADS, walk

_CHANGE = 1 + COLUMNS
"""Numbers that are uploaded for a node: its place and its columns."""
_EMPTY = -2


class DeviceTrees:
    def __init__(self, mirrors: Mirrors, num_sequences: int, device: torch.device) -> None:
        """Mirrors of a `seq` from `num_sequences` on have no copy, and so no drafted tokens."""
        self._mirrors, self._num_sequences, self._device = mirrors, num_sequences, device
        self._nodes = torch.full((num_sequences * SLOTS, COLUMNS), _EMPTY, dtype=torch.int32, device=device)
        mirrors.note_changes()

    def update(self, seqs: Sequence[int]) -> Tensor:
        """Copies changed nodes; returns where these sequences' trees begin [B, HEADS], on the device.

        A `seq` of -1 has no tree.
        """
        changes, heads = self._changes(), self._heads(seqs)
        packed = torch.from_numpy(np.concatenate((heads.ravel(), changes.ravel())))
        if self._device.type != "cpu":
            packed = packed.pin_memory().to(self._device, non_blocking=True)
        written = packed[heads.size :].view(-1, _CHANGE)
        self._nodes[written[:, 0].long()] = written[:, 1:]
        return packed[: heads.size].view(-1, HEADS)

    def walk(
        self,
        heads: Tensor,
        *,
        request_rows: Tensor,
        lengths: Tensor,
        texts: Tensor,
        num_sampled: Tensor,
        num_steps: int,
    ) -> tuple[Tensor, Tensor]:
        """Drafted tokens [B, K] and how many of them are known [B]; see `kernels/walk.py`."""
        return walk(
            self._nodes,
            heads,
            slots=SLOTS,
            request_rows=request_rows,
            lengths=lengths,
            texts=texts,
            num_sampled=num_sampled,
            num_steps=num_steps,
            # Outcomes of two steps may be unknown to the host.
            most_behind=2 * (num_steps + 1),
            most_children=MAX_CHILDREN,
        )

    def _changes(self) -> Ints:
        mirrors, places = self._mirrors, self._mirrors.take_changes()
        places = places[places < self._num_sequences * SLOTS]
        columns = (places, mirrors.ids, mirrors.tokens, mirrors.firsts, mirrors.counts)
        found = [columns[0], *(each[places] for each in columns[1:])]
        return np.stack(found, axis=1).astype(np.int32)

    def _heads(self, seqs: Sequence[int]) -> Ints:
        mirrors, asked = self._mirrors, np.asarray(seqs, np.int64)
        if not len(mirrors.epoch):
            return np.full((len(asked), HEADS), -1, np.int32)
        known = np.where((asked >= 0) & (asked < self._num_sequences), asked, 0)
        is_tree = (asked == known) & (mirrors.epoch[known] > 0) & ~mirrors.is_out_of_sync[known]
        columns: tuple[Longs, ...] = (known, mirrors.root[known], mirrors.root_length[known])
        return np.where(is_tree[:, None], np.stack(columns, axis=1), -1).astype(np.int32)
