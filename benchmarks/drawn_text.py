"""A text of `planning/text.py` as two models: which token follows which, and what a draft guesses of it.

Rates of acceptance can be chosen, and the draft's chances hold. Knows logits; no times.
"""

import uuid
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ssd.attention.rows import Row
from ssd.draft.forest.readings import Reading
from ssd.draft.forest.tables import Moves, Rows, Tables
from ssd.draft.messages import PROTOCOL_VERSION, Hello
from ssd.planning.text import MOST_CHILDREN, drawn_text

VOCAB = 2048
"""Tokens, and places of the text: each token is followed by one, and none comes twice within so many."""


class DrawnText:
    def __init__(self, acceptance: float, coverage: float) -> None:
        text = drawn_text(acceptance, coverage, length=VOCAB, seed=7)
        chances, ranks = torch.from_numpy(text.chances).float(), torch.from_numpy(text.ranks)
        places = torch.arange(VOCAB)
        self.following = (places * 5 + 1227) % VOCAB
        offsets = 1 + (places[:, None] * 11 + torch.arange(MOST_CHILDREN) * 101) % (VOCAB - 1)
        self._guesses = (self.following[:, None] + offsets) % VOCAB
        right = ranks >= 0
        self._guesses[places[right], ranks[right]] = self.following[right]
        left = (1 - chances.sum(1, keepdim=True)).clamp(min=1e-6) / VOCAB
        self._logits, self._rest = chances.clamp(min=1e-9).log(), left.log()

    def draft_logits(self, tokens: Tensor) -> Tensor:
        logits = self._rest[tokens].expand(-1, VOCAB).clone()
        return logits.scatter_(1, self._guesses[tokens], self._logits[tokens])

    def target_logits(self, rows: Sequence[Row]) -> Tensor:
        tokens = [token for row in rows if row.num_logits for token in row.tokens[-row.num_logits :]]
        return torch.nn.functional.one_hot(self.following[tokens], VOCAB).float()

    def part(self, token: int, count: int) -> list[int]:
        """So many tokens from this one on."""
        tokens = [token]
        while len(tokens) < count:
            tokens.append(int(self.following[tokens[-1]]))
        return tokens


class DrawnDraft:
    """In place of a draft's model."""

    def __init__(self, text: DrawnText, on_forward: Callable[[], None]) -> None:
        self._text, self._on_forward = text, on_forward

    def forward(self, rows: Rows, tables: Tables, readings: Sequence[Reading]) -> Tensor:
        self._on_forward()
        return self._text.draft_logits(torch.as_tensor(rows.token[rows.attaches], dtype=torch.long))

    def move(self, moves: Moves) -> None:
        pass


def hello(name: str) -> Hello:
    return Hello(PROTOCOL_VERSION, "a drawn text", VOCAB, name, uuid.uuid4().hex, 4096)
