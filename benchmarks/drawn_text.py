"""A drawn text as two models: which token follows which, and what a draft guesses of it.

Rates of acceptance can be chosen, and the draft's chances hold: where a guess has a chance, it is right that
often. Knows logits; no times.
"""

import uuid
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.attention.inputs import SequenceInput
from ssd.bench.bare import MISSED
from ssd.config import MAX_CHILDREN
from ssd.draft.protocol.messages import PROTOCOL_VERSION, Hello
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Moves, Tables, TreeRows

VOCAB = 2048
"""Tokens, and places of the text: each token is followed by one, and none comes twice within so many."""


_SPREAD = 1.0
"""How a draft's confidence varies, as the sum of a beta distribution's parameters: mostly sure."""
_DECAY = 0.5
"""How much of a chance the next guess has, relative to the one before it."""

Chances = NDArray[np.float64]
Ranks = NDArray[np.int64]


def drawn_ranks(acceptance: float, coverage: float, *, length: int, draw: np.random.Generator) -> Ranks:
    """By place of a text: which of the draft's guesses is right, or MISSED.

    The rates are met as exactly as the length allows, so that short texts are not lucky or unlucky.
    """
    shares = [acceptance, *((1 - acceptance) * coverage * _others())]
    bounds = np.round(np.minimum(np.cumsum(shares), 1.0) * length)
    ranks = np.searchsorted(bounds, np.arange(length), side="right")
    ranks = np.where(ranks < MAX_CHILDREN, ranks, MISSED)
    draw.shuffle(ranks)
    return ranks


def drawn_chances(ranks: Ranks, acceptance: float, coverage: float, *, draw: np.random.Generator) -> Chances:
    """By place and rank: what a calibrated draft believed before its guess turned out right or wrong."""
    acceptance = min(max(acceptance, 0.01), 0.99)
    right = ranks == 0
    firsts = draw.beta(_SPREAD * acceptance + right, _SPREAD * (1 - acceptance) + ~right)
    return np.column_stack([firsts, (1 - firsts)[:, None] * np.minimum(coverage * _others(), 1.0)])


def _others() -> Chances:
    """How guesses after the first share what it leaves, relative to the coverage of three of them."""
    weights = _DECAY ** np.arange(MAX_CHILDREN - 1)
    return np.asarray(weights / weights[:3].sum())


class DrawnText:
    def __init__(self, acceptance: float, coverage: float) -> None:
        draw = np.random.default_rng(7)
        drawn = drawn_ranks(acceptance, coverage, length=VOCAB, draw=draw)
        # The chances of docs/records/tree_speed.jsonl begin here.
        draw.bit_generator.advance(VOCAB)  # type: ignore[attr-defined]
        chances = torch.from_numpy(drawn_chances(drawn, acceptance, coverage, draw=draw)).float()
        ranks = torch.from_numpy(drawn)
        places = torch.arange(VOCAB)
        self.following = (places * 5 + 1227) % VOCAB
        offsets = 1 + (places[:, None] * 11 + torch.arange(MAX_CHILDREN) * 101) % (VOCAB - 1)
        self._guesses = (self.following[:, None] + offsets) % VOCAB
        right = ranks >= 0
        self._guesses[places[right], ranks[right]] = self.following[right]
        left = (1 - chances.sum(1, keepdim=True)).clamp(min=1e-6) / VOCAB
        self._logits, self._rest = chances.clamp(min=1e-9).log(), left.log()

    def draft_logits(self, tokens: Tensor) -> Tensor:
        logits = self._rest[tokens].expand(-1, VOCAB).clone()
        return logits.scatter_(1, self._guesses[tokens], self._logits[tokens])

    def target_logits(self, rows: Sequence[SequenceInput]) -> Tensor:
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

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        self._on_forward()
        return self._text.draft_logits(torch.as_tensor(rows.token[rows.attaches], dtype=torch.long))

    def move(self, moves: Moves) -> None:
        pass


def hello(name: str) -> Hello:
    return Hello(PROTOCOL_VERSION, "a drawn text", VOCAB, name, uuid.uuid4().hex, 4096)
