"""One row of the mirrors' table, for tests that look at one sequence."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from ssd.draft.client.mirrors import UNNAMED, Knowledge, Mirrors
from ssd.draft.protocol.messages import Nodes, TreePart

ROW = 3


def advanced(table: Mirrors, seqs: Sequence[int], texts: Sequence[Sequence[int]]) -> list[Knowledge]:
    """What a table knows after the new tokens of these sequences."""
    tokens = np.array([*chain.from_iterable(texts)], np.int32)
    return table.advance(np.array(seqs), np.array([*map(len, texts)]), tokens)


class OneMirror:
    def __init__(self, epoch: int, length: int = 1) -> None:
        self.table = Mirrors()
        self.table.open(ROW, epoch, length)
        self.epoch = epoch
        self.lengths = [length]
        """Of the text, by the number of outcomes."""

    @property
    def n(self) -> int:
        return int(self.table.n[ROW])

    @property
    def num_frames(self) -> int:
        return int(self.table.num_frames[ROW])

    @property
    def is_out_of_sync(self) -> bool:
        return bool(self.table.is_out_of_sync[ROW])

    @property
    def root_id(self) -> int:
        is_known = self.table.root_length[ROW] == self.table.length[ROW]
        return int(self.table.root[ROW]) if is_known else UNNAMED

    @property
    def content(self) -> list[tuple[int, int, int, float]]:
        """Id, parent's id, token and log-probability of every node below the root."""
        return self.table.content(ROW)

    def take(self, message: Nodes | TreePart) -> None:
        if isinstance(message, TreePart):
            length = message.length or self.lengths[min(message.n, self.n)]
            message = Nodes.of([replace(message, seq=ROW, length=length)])
        self.table.take(message)

    def advance(self, tokens: list[int]) -> Knowledge:
        self.lengths.append(self.lengths[-1] + len(tokens))
        [knowledge] = advanced(self.table, [ROW], [tokens])
        return knowledge

    def speculation(self, limit: int) -> tuple[list[int], list[float]]:
        """Tokens and chances."""
        return self.table.path(ROW, limit)

    def check(self) -> None:
        self.table.check_integrity()
