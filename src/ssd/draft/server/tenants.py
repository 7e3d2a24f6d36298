"""Divides the draft between tenants by their weights: rows of steps, trees and KV blocks.

`Tenants` keeps an account for each tenant: the rows it has had, divided by its weight, for prompts, roots and
nodes alike. The next row goes to the tenant with the smallest account (select.py), so over time rows are
shared by weight. Accounts are counted from that of the tenant furthest behind among those that wanted more
rows than they got. Idle tenants accrue no credit: they continue from where the others are. A tenant that has
had more than its share keeps that debt after its last sequence closes, unless nobody went short.

`RowAccounting` counts after each step which tenant got which rows. `CalibrationParts` gives each tenant
calibration counts of its own (tree/apply.py): a tenant that reports wrong or unusual outcomes must not change
what the draft expects of another one.

`Admission` chooses which session is closed when there are too few trees, blocks or rows: of the tenant that
holds most by its weight, the session that gained least for what it holds. A new session takes from other
tenants only what leaves them with at least as much as it then has itself, so two tenants never evict each
other in turns.

Knows names, counts and rows of the tables; does not know models or keys.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ssd.draft.server.kv import KvBlocks
from ssd.draft.server.offers import KeptRoom, Offers
from ssd.draft.server.session import DraftSession, Ledger, Longs
from ssd.draft.server.steps import Flags, GrowthResult, Reals, TenantColumns
from ssd.moving_average import moved_towards

_LAG_WEIGHT = 0.02
"""Weight of the newest step in a tenant's lag."""
_MAX_LAG = 0.5
"""A tenant that leaves more than this share of its unread tokens to later steps has too many sequences."""


class Tenants:
    """Accounts of tenants. Numbers from 1 on are for tenants with sequences; 0 is nobody's, like row 0."""

    def __init__(self, sequences: int, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._numbers: dict[str, int] = {}
        self._free = list(range(sequences, 0, -1))
        self._debts: dict[str, float] = {}
        """Accounts of tenants that have no sequence now."""
        self.of_row: Longs = np.zeros(sequences + 1, np.int64)
        self.used: Reals = np.zeros(sequences + 1)
        self.weight: Reals = np.ones(sequences + 1)
        self._is_present = np.zeros(sequences + 1, np.bool_)
        self._wants = np.zeros(sequences + 1, np.bool_)
        """Tenants that wanted more rows than they got in the last step."""
        self._lag: Reals = np.zeros(sequences + 1)
        self._num_had: dict[str, int] = {}
        self._calibration_parts = CalibrationParts(sequences)

    @property
    def are_several(self) -> bool:
        return len(self._numbers) > 1

    def weight_of(self, name: str) -> float:
        return self._weights.get(name, 1.0)

    def num_had(self, name: str) -> int:
        """Rows that a tenant has had since its first peer connected."""
        return self._num_had.get(name, 0)

    def forget(self, name: str) -> None:
        """The tenant's last peer has disconnected."""
        self._num_had.pop(name, None)
        self._calibration_parts.forget(name)

    def calibration_part(self, name: str) -> tuple[int, bool]:
        """The number of a tenant's calibration counts, and whether it was assigned just now."""
        return self._calibration_parts.take(name, self._numbers)

    def enter(self, row: int, name: str) -> None:
        if name not in self._numbers:
            number = self._numbers[name] = self._free.pop()
            self.weight[number], self.used[number] = self.weight_of(name), self._debts.pop(name, 0.0)
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
            self._debts[name] = float(self.used[number])
        self._is_present[number] = self._wants[number] = False
        self.used[number] = 0.0

    def settle(self, had: Longs, wanted: Longs | None) -> None:
        """Charges a step. For each row of the tables: rows of the step that it had, and that it wanted."""
        if not self.are_several and not self._debts:
            self.used[:] = 0.0
            return
        num_had = self._by_tenant(had)
        self._wants = self._is_present if wanted is None else num_had < self._by_tenant(wanted)
        self.used += num_had / self.weight
        if not self._wants.any():
            self.reset()
            return
        least = self.used[self._wants].min()
        self.used = np.maximum(self.used - least, 0.0)
        self._debts = {name: used - least for name, used in self._debts.items() if used > least}

    def reset(self) -> bool:
        """Clears all accounts: no tenant went short, so none owes anything. Returns whether any did."""
        owed = bool(self.used.any() or self._debts)
        self._wants = np.zeros_like(self._wants)
        self.used[:] = 0.0
        self._debts.clear()
        return owed

    def has_less_than_another(self, name: str) -> bool:
        """Whether another tenant has more sequences for its weight than this one would have with one more."""
        counts = np.bincount(self.of_row, minlength=len(self.of_row))
        counts[0] = 0
        shares, number = counts / self.weight, self._numbers.get(name, 0)
        due = shares[number] + 1 / self.weight_of(name)
        return bool((np.delete(shares, number) > due).any())

    def columns(self) -> TenantColumns:
        return TenantColumns(self.of_row, self.used, self.weight)

    def count(self, had: Longs) -> None:
        """Adds a step's rows to the totals that `num_had` reports."""
        num_had = self._by_tenant(had)
        for name, number in self._numbers.items():
            self._num_had[name] += int(num_had[number])

    def note_roots(self, due: Longs, read: Longs) -> None:
        """For each row of the tables: tokens that were due in a step, and tokens that were read."""
        num_due, num_computed = self._by_tenant(due), self._by_tenant(read)
        late = np.where(num_due > 0, 1 - num_computed / np.maximum(num_due, 1), 0.0)
        self._lag = moved_towards(self._lag, late, _LAG_WEIGHT)

    def overloaded(self) -> str | None:
        """A tenant with more sequences than its share of rows can serve. Resets that tenant's lag."""
        for name, number in self._numbers.items():
            if self._lag[number] > _MAX_LAG:
                self._lag[number] = 0.0
                return name
        return None

    def prompt_tokens(self, most: int, names: set[str]) -> dict[str, int]:
        """Divides a step's `most` prompt tokens between the tenants `names`, which wait for prefill.

        Each gets its share among all tenants that want rows, and nothing while it owes rows to one of them.
        What those that owe leave goes to the others, up to the rows that they are owed.
        """
        numbers = {name: self._numbers[name] for name in names}
        active = self._wants.copy()
        active[list(numbers.values())] = True
        if active.sum() < 2:
            return dict.fromkeys(names, most)
        owes = self.used > 1 / self.weight[active].min()
        per_weight = most / self.weight[active].sum()
        if (active & owes).any() and (active & ~owes).any():
            least_owed = self.used[active & owes].min()
            per_weight = max(per_weight, min(most / self.weight[active & ~owes].sum(), least_owed))
        return {
            name: 0 if owes[number] else max(1, int(per_weight * self.weight[number]))
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
    """Assigns each tenant a part of the calibration counts. Takes parts of the least recent tenants back."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self._numbers: OrderedDict[str, int] = OrderedDict()
        """By tenant, least recently used first."""

    def take(self, name: str, present: Container[str]) -> tuple[int, bool]:
        """A tenant's number, and whether it was assigned just now. Tenants in `present` keep theirs."""
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


@dataclass(frozen=True, slots=True)
class StepDemand:
    """A step that has ended, by row of the tables."""

    result: GrowthResult
    length: Longs
    """Tokens of each text that could grow, when the step was launched; 0 for others."""
    is_same: Flags
    """Whether the row still belongs to the sequence that it had then."""


class RowAccounting:
    """Charges tenants for the steps that they had."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def settle(
        self, demand: StepDemand, prefilled: Sequence[tuple[int, int]], waiting: Sequence[int] | None
    ) -> None:
        """All rows of a tenant count: roots, nodes, runs and prompts.

        `prefilled`: rows of the tables whose prompts were read, and the number of tokens. `waiting`: rows
        that had more to read; None: there was only one tenant.
        """
        result, size = demand.result, len(demand.length)
        chosen = np.bincount(result.sequence, minlength=size) * demand.is_same
        beside = np.bincount(result.run_sequence, minlength=size) * demand.is_same
        for row, count in prefilled:
            beside[row] += count * demand.is_same[row]
        self._tenants.count(chosen + beside)
        if waiting is None:
            self._tenants.settle(chosen + beside, None)
            return
        wanted = result.wanted * demand.is_same + beside
        wanted[list(waiting)] += demand.is_same[list(waiting)]
        self._tenants.settle(chosen + beside, wanted)
        read = np.bincount(result.sequence, result.is_read, size).astype(np.int64)
        due = np.where(demand.length > 0, demand.length - (result.num_computed - read), 0)
        self._tenants.note_roots(due, read)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a session holds of a scarce resource."""

    row: int
    tenant: str
    size: int
    value: float
    """Moving average of tokens gained per round."""

    @property
    def rank(self) -> tuple[float, int]:
        """Gain for what it holds. Of equal sessions the largest ranks lowest."""
        return self.value / max(1, self.size), -self.size


@dataclass(frozen=True, slots=True)
class Claim:
    """What a new session asks for."""

    tenant: str
    size: int


def session_to_evict(
    holdings: Sequence[Holding], weight_of: Callable[[str], float], claim: Claim | None = None
) -> int | None:
    """The row of the session to close, for a claim if there is one. None: no other tenant has more than the
    claimant.

    `holdings`: the oldest session first.
    """
    held = defaultdict[str, float](float)
    for each in holdings:
        held[each.tenant] += each.size / weight_of(each.tenant)
    if claim is not None:
        due = held.pop(claim.tenant, 0.0) + claim.size / weight_of(claim.tenant)
        held = defaultdict(float, {name: share for name, share in held.items() if share > due})
    if not held:
        return None
    most = max(held, key=lambda name: (held[name], name))
    return least_valuable(holdings, most)


def least_valuable(holdings: Sequence[Holding], tenant: str) -> int:
    """The row of the session with the lowest rank, of equal ones the youngest."""
    mine = (each for each in reversed(holdings) if each.tenant == tenant)
    return min(mine, key=lambda each: each.rank).row


class Admission:
    """Names the session to evict, by its row. The caller closes it and asks again until there is room.

    A negative row is the number of an offer (offers.py).
    """

    def __init__(
        self,
        sessions: Mapping[int, DraftSession],
        kv_blocks: KvBlocks,
        ledger: Ledger,
        tenants: Tenants,
        offers: Offers,
    ) -> None:
        """`sessions`: by row, the oldest first."""
        self._sessions, self._kv_blocks, self._ledger, self._tenants = sessions, kv_blocks, ledger, tenants
        self._offers = offers

    def for_tree(self, tenant: str) -> int | None:
        """The session whose tree a new session of a tenant may have; None: it gets none."""
        offers = [_kept(each, 1) for each in self._offers]
        return session_to_evict([*self._by_number(), *offers], self._tenants.weight_of, Claim(tenant, 1))

    def for_blocks(self, tenant: str, tokens: Sequence[int]) -> int | None:
        """The first session to evict for a new text. None if evicting all that may go is not enough."""
        size = self._kv_blocks.num_blocks_for(len(tokens))
        return self.for_size(tenant, size, self._kv_blocks.num_lacking(tokens, tenant))

    def for_size(self, tenant: str, num_blocks: int, lacking: int) -> int | None:
        """The first session to evict for a text of so many blocks, of which some are lacking."""
        claim, offers = Claim(tenant, num_blocks), [_kept(each, each.num_blocks) for each in self._offers]
        holdings, gone = [*self._by_blocks(), *offers], list[Holding]()
        while self._num_freed(gone) < lacking:
            row = session_to_evict(holdings, self._tenants.weight_of, claim)
            if row is None:
                return None
            gone += [each for each in holdings if each.row == row]
            holdings = [each for each in holdings if each.row != row]
        return gone[0].row if gone else None

    def _num_freed(self, gone: Sequence[Holding]) -> int:
        """Blocks that are free without these sessions and offers."""
        kept = sum(each.size for each in gone if each.row < 0)
        return kept + self._kv_blocks.num_only_of(each.row for each in gone if each.row > 0)

    def for_others(self) -> int | None:
        """The session to evict when texts lack blocks and no session can grow."""
        return session_to_evict(self._by_blocks(), self._tenants.weight_of)

    def for_rows(self) -> int | None:
        """A session of a tenant that has too few rows for its sessions; None: there is no such tenant."""
        tenant = self._tenants.overloaded()
        return None if tenant is None else least_valuable(self._by_number(), tenant)

    def _by_number(self) -> list[Holding]:
        return [self._holding(each, 1) for each in self._sessions.values()]

    def _by_blocks(self) -> list[Holding]:
        return [self._holding(each, len(self._kv_blocks.of(each))) for each in self._sessions.values()]

    def _holding(self, session: DraftSession, size: int) -> Holding:
        return Holding(session.row, session.tenant, size, float(self._ledger.value[session.row]))


def _kept(offer: KeptRoom, size: int) -> Holding:
    """An offer gains nothing yet, so it goes before any session of its tenant."""
    return Holding(-offer.number, offer.tenant, size, 0.0)
