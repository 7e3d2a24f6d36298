"""A copy of the mirrors' trees on the target's device, from which a kernel chooses drafted tokens.

Each step uploads one buffer: where each request's tree begins, and the nodes that changed since the last
step. Knows mirrors and tensors. Does not know vLLM, and never waits for the device.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ssd.config import MAX_CHILDREN
from ssd.draft.client.mirrors import SLOTS, Mirrors
from ssd.draft.protocol.messages import Ints
from ssd.kernels.walk import COLUMNS, HEADS, walk

__all__ = ["HEADS", "DeviceTrees", "empty_nodes", "walk_nodes"]

_CHANGE = 1 + COLUMNS
"""Numbers that are uploaded for a node: its place and its columns."""
_EMPTY = -2


class Changes(NamedTuple):
    """What a step uploads."""

    heads: Ints
    nodes: Ints


def empty_nodes(num_sequences: int, device: torch.device) -> Tensor:
    """A table for the nodes of all sequences: 64 KiB for each."""
    return torch.full((num_sequences * SLOTS, COLUMNS), _EMPTY, dtype=torch.int32, device=device)


class DeviceTrees:
    def __init__(self, mirrors: Mirrors, nodes: Tensor) -> None:
        """Uses `nodes`, a table for some sequences; a `seq` beyond them has no copy and no drafted tokens.

        Requires the lock of the client's pool.
        """
        self._mirrors, self._nodes = mirrors, nodes
        self._num_sequences = len(nodes) // SLOTS
        nodes.fill_(_EMPTY)
        mirrors.note_changes()

    def collect(self, seqs: Sequence[int]) -> Changes:
        """The nodes that changed, and where these sequences' trees begin; a `seq` of -1 has no tree.

        Requires the lock of the client's pool.
        """
        return Changes(self._heads(seqs), self._changed_nodes())

    def upload(self, changes: Changes) -> Tensor:
        """Writes the changed nodes; returns where the trees begin [B, HEADS], on the device."""
        size, device = changes.heads.size, self._nodes.device
        # Pinned memory is not allocated here in each step: torch keeps it, and gives it out again once the
        # upload from it has ended.
        is_pinned = device.type != "cpu" and torch.accelerator.is_available()
        staged = torch.empty(size + changes.nodes.size, dtype=torch.int32, pin_memory=is_pinned)
        np.concatenate((changes.heads.ravel(), changes.nodes.ravel()), out=staged.numpy())
        packed = staged.to(device, non_blocking=True)
        if changes.nodes.size:
            written = packed[size:].view(-1, _CHANGE)
            self._nodes[written[:, 0].long()] = written[:, 1:]
        return packed[:size].view(-1, HEADS)

    def _changed_nodes(self) -> Ints:
        mirrors, places = self._mirrors, self._mirrors.take_changes()
        places = places[places < self._num_sequences * SLOTS]
        changed = np.empty((len(places), _CHANGE), np.int32)
        changed[:, 0], changed[:, 1:] = places, mirrors.nodes[places, :COLUMNS]
        return changed

    def _heads(self, seqs: Sequence[int]) -> Ints:
        mirrors, asked = self._mirrors, np.array(seqs, np.int64)
        heads = np.full((len(asked), HEADS), -1, np.int32)
        rows = ((asked >= 0) & (asked < self._num_sequences)).nonzero()[0]
        rows = rows[(mirrors.epoch[asked[rows]] > 0) & ~mirrors.is_out_of_sync[asked[rows]]]
        known = asked[rows]
        heads[rows] = np.array((known, mirrors.root[known], mirrors.root_length[known])).T
        return heads


def walk_nodes(
    nodes: Tensor,
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
        nodes,
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
