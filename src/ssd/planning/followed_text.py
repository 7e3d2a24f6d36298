"""One text and the tree a draft would grow of it: how far it is decided, and what is known below that.

The tree is the engine's own; the models are replaced by the text, which knows what a draft would offer at
each place and what the target takes. Knows no time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssd.config import Backup, GrowthPolicyName
from ssd.planning.text import MISSED, Text
from ssd.planning.tree import UNGROWN, UNNAMED, Tree

_GROWN = 0
"""Slot of a node that was processed; which slot does not matter here."""
_LEAST_CHANCE = 1e-4
_UNFORESEEN = 10_000
"""A token that is nobody's child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Settings of SSD that the model knows; names and defaults are the engine's."""

    lookahead: int = 8
    width: int = 12
    children: int = 4
    lookup: int = 4
    growth: GrowthPolicyName = "value"
    backup: Backup = "auto"


class FollowedText:
    """One text, how far it is decided, and the tree of what may follow."""

    def __init__(self, text: Text, shape: Shape, draw: np.random.Generator) -> None:
        self.text, self._shape, self._draw = text, shape, draw
        self._truth = [_UNFORESEEN if rank == MISSED else int(rank) for rank in text.ranks]
        chances = np.maximum(text.chances[:, : shape.children], _LEAST_CHANCE)
        self._logprobs: list[list[float]] = np.log(chances).tolist()
        self.place = 0
        """Tokens decided so far."""
        self.tree = Tree(UNNAMED, 0)
        self.num_grown = 0
        self.owed: list[int] = []
        """Decided tokens that were not known below the root when they were decided."""
        self._next_id = 0

    @property
    def is_done(self) -> bool:
        return self.place >= len(self.text)

    @property
    def is_root_read(self) -> bool:
        return self.tree.slots[self.tree.root] != UNGROWN and not self.owed

    def truth(self, count: int) -> list[int]:
        return self._truth[self.place : self.place + count]

    def advance(self, tokens: Sequence[int]) -> str:
        """Moves on along decided tokens; whether what follows was a hit, late or unknown."""
        self.place += len(tokens)
        self.owed += tokens
        self.walk_owed()
        is_behind = len(self.owed) > len(tokens)
        if is_behind or not self.tree.num_children[self.tree.root]:
            return "late"
        return "unknown" if self.owed else "hit"

    def walk_owed(self) -> None:
        path = self.tree.walk(self.owed)
        if path:
            self.tree.move_root(path[-1])
            del self.owed[: len(path)]

    def before_step(self) -> None:
        """What the draft does when it hears of outcomes: it follows them, or begins anew behind them."""
        if self.owed:
            self.tree.replant(UNNAMED, 0)
            self.owed.clear()
            self.num_grown = 0
        elif self.tree.root:
            self.tree.compact()
            self.num_grown = sum(slot == _GROWN for slot in self.tree.slots)

    def growable(self) -> list[int]:
        limit = 2 * self._shape.lookahead + 1
        depths = self.tree.relative_depths()
        return np.flatnonzero(
            (np.array(self.tree.slots) == UNGROWN) & (depths > 0) & (depths <= limit)
        ).tolist()

    @property
    def _root_place(self) -> int:
        return self.place - len(self.owed)

    def true_path(self) -> list[int]:
        """The nodes, from the root on, that the text runs through."""
        truth = self._truth[self._root_place : self._root_place + 2 * self._shape.lookahead + 2]
        return [self.tree.root, *self.tree.walk(truth)]

    def grow(self, node: int, true_path: Sequence[int]) -> None:
        """Gives a node its children: the text's own where it runs through it, else those of any place."""
        tree = self.tree
        tree.slots[node] = _GROWN
        self.num_grown += 1
        place = self._root_place + tree.depths[node] - tree.depths[tree.root]
        if node not in true_path or place >= len(self.text):
            place = int(self._draw.integers(len(self.text)))
        logprobs = self._logprobs[place]
        ids = range(self._next_id, self._next_id + len(logprobs))
        self._next_id += len(logprobs)
        tree.graft(node, ids, range(len(logprobs)), logprobs)

    def grow_run(self, node: int, true_path: Sequence[int]) -> None:
        """Tokens that the earlier text foretells, as far as they are right and among the guesses."""
        tree = self.tree
        place = self._root_place + tree.depths[node] - tree.depths[tree.root]
        if node not in true_path or place >= len(self.text):
            return
        count = min(self._shape.lookup, int(self.text.runs[place]))
        for token in self._truth[place : place + count]:
            child = tree.child(node, token)
            if child is None or tree.slots[child] != UNGROWN:
                return
            self.grow(child, [child])
            node = child
