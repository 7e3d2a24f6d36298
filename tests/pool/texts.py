"""The texts of targets, the rule by which drafts guess them, and the grammars that force some tokens.

A text is determined by its seed, its prompt and the position: mostly the next token follows from the last
one by a rule that drafts know, sometimes it does not, and where a grammar forces a token it is that one. So
a target decides each token by itself, whatever was drafted, and the whole text is known in advance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssd.draft.protocol.messages import Ints
from ssd.draft.tree.children import ChosenChildren
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Moves, Tables, TreeRows

VOCAB = 96
"""Token ids that drafts and targets know. Small: a stand-in's logits are most of what a step costs."""
CHILDREN = 4
_MASK = 2**64 - 1
_FIRST = 2
"""Tokens below it end texts, and are never guessed."""


def mixed(seed: int, position: int) -> int:
    """64 bits that look random."""
    value = (seed * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def following(token: int) -> int:
    """The token that the rule says."""
    return (31 * token + 7) % (VOCAB - _FIRST) + _FIRST


@dataclass(frozen=True, slots=True)
class Text:
    seed: int
    surprises: int
    """One token in so many does not follow the rule."""
    forces: int = 0
    """One token in so many is forced by a grammar; 0: there is no grammar."""
    strays: int = 0
    """One forced token in so many is decided otherwise: the end of a text comes first. 0: none."""

    def forced(self, position: int) -> int | None:
        """What the grammar forces at this place of the text."""
        if not self.forces:
            return None
        value = mixed(self.seed + 1, position // 3)  # Three in a row: send_forced sends several.
        return _FIRST + value % (VOCAB - _FIRST) if value % self.forces == 0 else None

    def after(self, token: int, position: int) -> int:
        """What the target decides at a position, after this token."""
        value = mixed(self.seed, position)
        forced = self.forced(position)
        if forced is not None and not (self.strays and value % self.strays == 0):
            return forced
        if value % self.surprises == 0:
            return _FIRST + (value >> 20) % (VOCAB - _FIRST)
        return following(token)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A text's grammar at a position."""

    text: Text
    position: int

    def only(self) -> int | None:
        return self.text.forced(self.position)

    def allows(self, token: int) -> bool:
        return token >= _FIRST

    def after(self, token: int) -> "Grammar":
        return Grammar(self.text, self.position + 1)


def _table() -> Tensor:
    """Logits after each token: the rule's is likely; after every tenth token a draft is wrong about it."""
    tokens = torch.arange(VOCAB)
    right = torch.tensor([following(token) for token in range(VOCAB)])
    guessed = torch.where(tokens % 10 == 0, (right - _FIRST + 1) % (VOCAB - _FIRST) + _FIRST, right)
    logits = torch.zeros(VOCAB, VOCAB)
    logits.scatter_add_(
        1, (right.unsqueeze(1) + 3 - _FIRST) % (VOCAB - _FIRST) + _FIRST, torch.full((VOCAB, 1), 3.0)
    )
    logits.scatter_(1, guessed.unsqueeze(1), 9.0)
    logits.scatter_add_(1, right.unsqueeze(1), torch.full((VOCAB, 1), 5.0))
    return logits


_LOGITS = _table()
_SCORES, _IDS = (each[:, :CHILDREN].numpy() for each in _LOGITS.sort(dim=1, descending=True, stable=True))
_RAWS = _SCORES - _LOGITS.logsumexp(1, keepdim=True).numpy()
_NO_LOGITS = torch.zeros(0)


class RuledForward:
    """In place of a draft's model: the rule, for requests whose children the logits decide."""

    num_columns = VOCAB

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        return _LOGITS[torch.from_numpy(rows.token[rows.attaches])]

    def move(self, moves: Moves) -> None:
        pass


class QuickForward(RuledForward):
    """The same for greedy requests, whose children `QuickChildren` looks up: without logits."""

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        return _NO_LOGITS


class QuickChildren:
    """The children that `LooseChildren` would choose for greedy requests by the rule."""

    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren:
        tokens: Ints = rows.token
        return _IDS[tokens].astype(np.int64), _RAWS[tokens].astype(np.float32)
