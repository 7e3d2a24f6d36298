"""Who gives way where there is not enough of something for everyone.

Trees and blocks are shared as rows are: by tenants' weights. Of the tenant that has most, by its weight, the
sequence goes that gained least for what it holds. A newcomer takes from others only what leaves them with no
less than it has then itself, so nobody is sent away in turns. Knows counts and gains; no tables, no peers.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ssd.draft.server.kv_blocks import KvBlocks
from ssd.draft.server.ledger import Ledger
from ssd.draft.server.session import DraftSession
from ssd.draft.server.tenants import Tenants


@dataclass(frozen=True, slots=True)
class Holding:
    """What a sequence has of what there is too little of."""

    session_id: int
    tenant: str
    size: int
    value: float
    """Tokens that it gained a round, of late."""

    @property
    def worth(self) -> tuple[float, int, int]:
        """What it yields for what it holds; of equals the largest is worth least, then the youngest."""
        return self.value / max(1, self.size), -self.size, -self.session_id


@dataclass(frozen=True, slots=True)
class Claim:
    """What a newcomer asks for."""

    tenant: str
    size: int


def who_gives_way(
    holdings: Sequence[Holding], weight_of: Callable[[str], float], claim: Claim | None = None
) -> int | None:
    """The session that goes; None: the newcomer has to."""
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
    mine = (each for each in holdings if each.tenant == tenant)
    return min(mine, key=lambda each: each.worth).session_id


class Admission:
    """The same of the sequences that are open. Whoever asks sends away whom it names, and asks again."""

    def __init__(
        self, session: Mapping[int, DraftSession], kv_blocks: KvBlocks, ledger: Ledger, tenants: Tenants
    ) -> None:
        self._sessions, self._kv_blocks, self._ledger, self._tenants = session, kv_blocks, ledger, tenants

    def for_tree(self, tenant: str) -> int | None:
        """The session that goes for a newcomer of a tenant; None: nobody does."""
        return who_gives_way(self._by_number(), self._tenants.weight_of, Claim(tenant, 1))

    def for_blocks(self, tenant: str, tokens: Sequence[int]) -> int | None:
        """The session that goes for a newcomer's text; None too where all that may go would not be enough."""
        claim = Claim(tenant, self._kv_blocks.num_blocks_for(len(tokens)))
        lacking, holdings = self._kv_blocks.num_lacking(tokens, tenant), self._by_blocks()
        first: int | None = None
        while lacking > 0:
            gone = who_gives_way(holdings, self._tenants.weight_of, claim)
            if gone is None:
                return None
            first = gone if first is None else first
            lacking -= next(each.size for each in holdings if each.session_id == gone)
            holdings = [each for each in holdings if each.session_id != gone]
        return first

    def for_others(self) -> int | None:
        """Where texts lack blocks and nobody can go on."""
        return who_gives_way(self._by_blocks(), self._tenants.weight_of)

    def for_rows(self) -> int | None:
        """Of a tenant that has too few rows for all that it has open."""
        tenant = self._tenants.overloaded()
        return None if tenant is None else least_valuable(self._by_number(), tenant)

    def _by_number(self) -> list[Holding]:
        return [self._holding(each, 1) for each in self._sessions]

    def _by_blocks(self) -> list[Holding]:
        return [self._holding(each, len(self._kv_blocks.of(each))) for each in self._sessions]

    def _holding(self, session_id: int, size: int) -> Holding:
        session = self._sessions[session_id]
        return Holding(session_id, session.tenant, size, float(self._ledger.value[session.row]))
