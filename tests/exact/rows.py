"""Rows of the matrix: circumstances under which requests must get the tokens of plain decoding.

A row is drawn from one number. `matrix` chooses rows that have all pairs of circumstances, and every
circumstance with every feature of a request.
"""

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.exact.requests import Asked, Value, covering, pairs_of, pool, values_of

DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "mode": ("ar", "sd", "ssd"),
    "weights": ("float32", "bfloat16", "int8"),
    "tree": (False, True),
    "draft": ("none", "good", "layers", "random", "hostile"),
    "draft_fault": ("none", "killed", "frozen", "late", "drop", "lie", "reorder"),
    "batch": (1, 2, 5, 16),
    "room": ("plenty", "few"),
    "cache": (False, True),
    "prompts": ("whole", "chunks", "unchunked"),
    "async_forward": (False, True),
    "fair_sharing": (False, True),
}
SEEDS = (
    42, 100, 123, 231, 249, 305, 374, 475, 513, 551, 621, 717, 735, 826, 857, 942, 968, 1054, 1094, 1140,
    1221, 1281, 1376, 1405, 1448, 1501, 1576, 1642, 1706, 1755, 1802, 1874, 1926, 2038, 2060, 2129, 2161,
    2224, 2280, 2341, 2404, 2472, 2520, 2580, 2640, 2720, 2773, 2943, 3273,
)  # fmt: skip
"""Of the rows that CI runs: those of `matrix(0)`. Which rows they are follows from everything above."""
_NUM_REQUESTS = {1: 3, 2: 4, 5: 6, 16: 9}
ROWS_A_POOL = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    seed: int
    mode: str
    weights: str
    tree: bool
    """Whether speculations may be trees."""
    draft: str
    """good: the target itself; layers: its first ones; random: other weights; hostile: knows the truth."""
    draft_fault: str
    """What happens to a draft that works ahead, or to its frames."""
    batch: int
    room: str
    """few: KV blocks for about one and a half sequences."""
    cache: bool
    prompts: str
    async_forward: bool
    """The forward goes on while the host does other work."""
    fair_sharing: bool
    """As a server shares steps between callers."""

    @classmethod
    def drawn(cls, seed: int) -> "Row":
        """The first possible row of the seed."""
        draw = random.Random(f"row {seed}")
        while True:
            row = cls(seed, *(draw.choice(values) for values in DIMENSIONS.values()))
            if row.is_possible:
                return row

    @property
    def is_possible(self) -> bool:
        if self.mode == "ar":
            drafting = (self.tree, self.draft, self.draft_fault) == (False, "none", "none")
        elif self.mode == "sd":
            # Drafting in turns blocks the host; a hostile draft answers at once.
            turns = not self.async_forward or self.draft == "hostile"
            drafting = self.draft != "none" and self.draft_fault == "none" and turns
        else:
            drafting = self.draft in ("good", "layers", "random") and (
                self.draft_fault != "killed" or self.draft == "good"
            )
        return (
            drafting
            and not (self.room == "few" and self.batch < 5)
            and not (self.fair_sharing and self.batch == 1)
        )

    @property
    def asked(self) -> tuple[Asked, ...]:
        """Its requests, in order of arrival; the first can take its prompt from the cache."""
        draw = random.Random(f"asked {self.seed}")
        known = list(pool(self.seed // ROWS_A_POOL))
        first = draw.choice([each for each in known if each.may_be_cached])
        known.remove(first)
        return first, *draw.sample(known, _NUM_REQUESTS[self.batch] - 1)

    @property
    def lookahead(self) -> int:
        return random.Random(f"lookahead {self.seed}").choice((1, 3, 4, 8))


def goals_of(row: Row) -> set[frozenset[Value]]:
    """Pairs of the row's values; pairs of a row's value with a value of one of its requests; and the triples
    (mode, draft, fault) and (mode, draft, tree)."""
    asked = {value for each in row.asked for value in values_of(each)}
    mixed = {frozenset((mine, other)) for mine in values_of(row) for other in asked}
    drafting = frozenset((("mode", row.mode), ("draft", row.draft), ("draft_fault", row.draft_fault)))
    form = frozenset((("mode", row.mode), ("draft", row.draft), ("tree", row.tree)))
    return pairs_of(row) | mixed | {drafting, form}


@cache
def matrix(number: int) -> tuple[Row, ...]:
    """Rows whose seeds begin at `number * ROWS_A_POOL`."""
    first = number * ROWS_A_POOL
    drawn = (Row.drawn(seed) for seed in range(first, first + ROWS_A_POOL))
    return tuple(covering(drawn, goals_of))
