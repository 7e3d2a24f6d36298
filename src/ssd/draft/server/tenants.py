"""Divides the draft's rows between tenants by their weights, counted over all steps.

Each tenant has an account of the rows that it has had, divided by its weight: prompts, roots and nodes alike.
The next row goes to the tenant that has had least (select.py), so over time rows are shared by weight.
Accounts count from that of the tenant furthest behind among those that want more than they got. Idle tenants
accrue no credit: they continue from where the others are. A tenant that has had more than its share owes it,
also after it has gone, unless nobody went short.

`CalibrationParts` numbers tenants for calibration (calibration.py): what one tenant reports, wrong or merely
unusual, must not change what the draft expects of another. `RowAccounting` writes the accounts to the tables
that a step reads, and counts afterwards which tenant got which rows.

Knows names, numbers and table rows; no models, no keys.
"""

from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ssd.draft.server.host_choices import TokenRun
from ssd.draft.server.ledger import Longs
from ssd.draft.tree.forest import Forest
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
        self._calibration_parts = CalibrationParts(sequences)

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
        self._calibration_parts.forget(name)

    def calibration_part(self, name: str) -> tuple[int, bool]:
        """The number of a tenant's counts, and whether it begins with them (tenants.py)."""
        return self._calibration_parts.take(name, self._numbers)

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


class CalibrationParts:
    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self._numbers: OrderedDict[str, int] = OrderedDict()
        """By tenant; who had one assigned longest ago comes first."""

    def take(self, name: str, present: Container[str]) -> tuple[int, bool]:
        """A tenant's number, and whether it is new to it. Those of tenants that are present stay."""
        number = self._numbers.get(name)
        is_new = number is None
        if number is None:
            if not self._free:
                self.forget(next(each for each in self._numbers if each not in present))
            number = self._numbers[name] = self._free.pop()
        self._numbers.move_to_end(name)
        return number, is_new

    def forget(self, name: str) -> None:
        number = self._numbers.pop(name, None)
        if number is not None:
            self._free.append(number)


class RowAccounting:
    def __init__(self, forest: Forest, tenants: Tenants) -> None:
        self._forest, self._tenants = forest, tenants

    def load(self) -> None:
        """Before rows are selected. One tenant alone needs no turns."""
        forest, tenants = self._forest, self._tenants
        forest.is_shared = forest.xp.is_fixed or tenants.are_several
        if forest.is_shared:
            forest.xp.load(forest.usage.tenant, tenants.of_row)
            forest.xp.load(forest.usage.used, tenants.used)
            forest.xp.load(forest.usage.weight, tenants.weight)

    def settle(
        self, runs: Sequence[TokenRun], prefilled: Sequence[tuple[int, int]], waiting: Sequence[int]
    ) -> None:
        """Before rows are attached. Whatever is computed for a tenant counts: roots, nodes, runs and prompts.

        `prefilled`: rows of the tables whose prompts are read, and how much of them; `waiting`: those that
        have more to read.
        """
        forest, size = self._forest, self._forest.shape.sequences + 1
        sequence = forest.xp.to_host(forest.rows.sequence)
        own = forest.shape.num_rows if forest.xp.is_fixed else len(sequence) - len(forest.runs.owner)
        chosen = np.bincount(sequence[:own], minlength=size)
        had = chosen.copy()
        for run in runs:
            had[sequence[run.owner]] += len(run.tokens)
        for row, count in prefilled:
            had[row] += count
        self._tenants.count(had)
        self._tenants.settle(had, self._wanted(had - chosen, waiting) if forest.is_shared else None)
        if forest.is_shared:
            is_read = forest.xp.to_host(forest.rows.is_read)[:own]
            self._tenants.note_roots(self._due(), np.bincount(sequence[:own], is_read, size))

    def _wanted(self, beside: Longs, waiting: Sequence[int]) -> Longs:
        wanted: Longs = self._forest.xp.to_host(self._forest.usage.wanted) + beside
        np.add.at(wanted, list(waiting), 1)
        return wanted

    def _due(self) -> Longs:
        """Of each row of the tables: tokens of its text that a step may read."""
        tables, to_host = self._forest.tables, self._forest.xp.to_host
        behind: Longs = (to_host(tables.length) - to_host(tables.num_read)) * to_host(tables.is_live)
        return behind
