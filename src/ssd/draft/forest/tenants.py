"""Whose turn it is: rows of the draft by tenants' weights, counted over all steps.

Each tenant has an account of the rows that it has had, divided by its weight: prompts, roots and nodes alike.
The next row goes to whoever has had least (select.py), so over time rows stand as weights do. Accounts count
from that of the tenant furthest behind among those that want more than they got. Who wants nothing saves
nothing: it is taken along, and finds others where they are when it comes back. What it has had beyond its
share it owes, also if it goes meanwhile. Where nobody goes without, nobody owes anything.

Knows rows of the tables and names; no sequences, no keys.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ssd.draft.forest.books import Books
from ssd.draft.forest.ledger import Longs
from ssd.moving_average import moved_towards

Flags = NDArray[np.bool_]
Reals = NDArray[np.float64]
_LAG_WEIGHT = 0.02
"""Of the newest step."""
_TOO_LATE = 0.5
"""Share of its roots that a tenant leaves to later steps: with more it has too many sequences."""


class Tenants:
    """Numbers from 1 on are for tenants that have sequences; 0 is nobody's, as row 0 is."""

    def __init__(self, sequences: int, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._numbers: dict[str, int] = {}
        self._free = list(range(sequences, 0, -1))
        self._gone: dict[str, float] = {}
        """What those owe that have no sequence."""
        self.of_row: Longs = np.zeros(sequences + 1, np.int64)
        self.used: Reals = np.zeros(sequences + 1)
        self.weight: Reals = np.ones(sequences + 1)
        self._is_present = np.zeros(sequences + 1, np.bool_)
        self._wants = np.zeros(sequences + 1, np.bool_)
        """Who would have taken more in the last step."""
        self._lag: Reals = np.zeros(sequences + 1)
        self._num_had: dict[str, int] = {}
        self._books = Books(sequences)

    @property
    def are_several(self) -> bool:
        return len(self._numbers) > 1

    def weight_of(self, name: str) -> float:
        return self._weights.get(name, 1.0)

    def num_had(self, name: str) -> int:
        """Rows that a tenant had since it came, while it has sequences."""
        return self._num_had.get(name, 0)

    def forget(self, name: str) -> None:
        """Nobody of this tenant is there any more."""
        self._num_had.pop(name, None)
        self._books.forget(name)

    def book(self, name: str) -> tuple[int, bool]:
        """The number of a tenant's counts, and whether it begins with them (books.py)."""
        return self._books.take(name, self._numbers)

    def enter(self, row: int, name: str) -> None:
        if name not in self._numbers:
            number = self._numbers[name] = self._free.pop()
            self.weight[number], self.used[number] = self.weight_of(name), self._gone.pop(name, 0.0)
            self._is_present[number], self._wants[number], self._lag[number] = True, False, 0.0
            self._num_had.setdefault(name, 0)
        self.of_row[row] = self._numbers[name]

    def leave(self, row: int, name: str) -> None:
        number = self._numbers[name]
        self.of_row[row] = 0
        if (self.of_row == number).any():
            return
        del self._numbers[name]
        self._free.append(number)
        if self.used[number] > 0:
            self._gone[name] = float(self.used[number])
        self._is_present[number] = self._wants[number] = False
        self.used[number] = 0.0

    def settle(self, had: Longs, wanted: Longs | None) -> None:
        """A step is over: rows of the tables had so many of its rows, and would have taken so many."""
        if not self.are_several and not self._gone:
            self.used[:] = 0.0
            return
        num_had = self._by_tenant(had)
        self._wants = self._is_present if wanted is None else num_had < self._by_tenant(wanted)
        self.used += num_had / self.weight
        if not self._wants.any():
            self.rest()
            return
        least = self.used[self._wants].min()
        self.used = np.maximum(self.used - least, 0.0)
        self._gone = {name: used - least for name, used in self._gone.items() if used > least}

    def rest(self) -> None:
        """There was nothing to do for anybody."""
        self._wants = np.zeros_like(self._wants)
        self.used[:] = 0.0
        self._gone.clear()

    def count(self, had: Longs) -> None:
        """For whoever asks what it had: the same rows, ever since."""
        num_had = self._by_tenant(had)
        for name, number in self._numbers.items():
            self._num_had[name] += int(num_had[number])

    def note_roots(self, due: Longs, read: Longs) -> None:
        """Of each row of the tables: tokens that were to be read in a step, and those that were."""
        num_due, num_read = self._by_tenant(due), self._by_tenant(read)
        late = np.where(num_due > 0, 1 - num_read / np.maximum(num_due, 1), 0.0)
        self._lag = moved_towards(self._lag, late, _LAG_WEIGHT)

    def overloaded(self) -> str | None:
        """A tenant that has more sequences than its share of rows is enough for; it is named once."""
        for name, number in self._numbers.items():
            if self._lag[number] > _TOO_LATE:
                self._lag[number] = 0.0
                return name
        return None

    def prompt_tokens(self, most: int, names: set[str]) -> dict[str, int]:
        """Of `most` tokens of prompts that a step reads, how many each of those has that wait for some.

        Its share beside all that want something; nothing while it owes rows to one of them.
        """
        numbers = {name: self._numbers[name] for name in names}
        active = self._wants.copy()
        active[list(numbers.values())] = True
        if active.sum() < 2:
            return dict.fromkeys(names, most)
        weights, owes = self.weight[active].sum(), self.used > 1 / self.weight[active].min()
        return {
            name: 0 if owes[number] else max(1, int(most * self.weight[number] / weights))
            for name, number in numbers.items()
        }

    def check_integrity(self, names_by_row: Mapping[int, str]) -> None:
        found = {row: self._numbers[name] for row, name in names_by_row.items()}
        if {row: int(self.of_row[row]) for row in np.flatnonzero(self.of_row)} != found:
            raise RuntimeError("a row belongs to another tenant than its sequence does")
        if set(self._numbers) != set(names_by_row.values()):
            raise RuntimeError("a tenant has no sequence, or a sequence no tenant")

    def _by_tenant(self, by_row: Longs) -> Longs:
        found: Longs = np.bincount(self.of_row[: len(by_row)], by_row, len(self.of_row)).astype(np.int64)
        found[0] = 0
        return found
