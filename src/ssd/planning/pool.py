"""A pool of drafts for many targets: how many, at what price, and what breaks first.

A draft's step carries a row or more for each sequence of all its targets; they share its rows, its seats, its
memory and its host. Knows data sheets, and what hosts cost as it was measured (hosts.py). Not in it: prompts,
failures, and what a network adds to a miss.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product

from ssd.planning.deployment import LOOKAHEADS, WIDTH, Offer, Site, tokens_for
from ssd.planning.followed_text import Shape
from ssd.planning.hosts import Hosts
from ssd.planning.rolling import simulate_batch
from ssd.planning.roofline import Place
from ssd.planning.rounds import roof
from ssd.planning.times import PairTimes

_LEAST_SPEED = 0.95
"""Of what users have with a draft for each target: below this a draft has too much to do."""
_MOST_SHARERS = 64


@dataclass(frozen=True, slots=True)
class PoolRow:
    """Drafts that have so many targets each."""

    sharers: int
    num_drafts: int
    offer: Offer
    forward: float
    """Seconds of a draft's step."""
    host: float
    """Seconds of its host beside each."""

    @property
    def per_user(self) -> float:
        return self.offer.per_user

    @property
    def per_million(self) -> float | None:
        return self.offer.per_million


@dataclass(frozen=True, slots=True)
class Limit:
    what: str
    most: int
    """Targets that a draft serves before it is reached."""
    remedy: str


@dataclass(frozen=True, slots=True)
class PoolPlan:
    rows: list[PoolRow]
    limits: list[Limit]
    """The first to break first."""
    longest_trip: float
    """Seconds: a round trip beyond a verification, and answers come too late for the next one."""

    @property
    def best(self) -> PoolRow:
        """The cheapest, by price, or by devices where there is no price."""
        return min(self.rows, key=lambda row: row.offer.per_million or 1 / row.offer.per_device)


@dataclass(frozen=True, slots=True)
class Pool:
    site: Site
    hosts: Hosts
    num_targets: int
    tp: int
    batch: int
    seats: int
    """Sequences that a draft takes (--max-num-seqs)."""

    def plan(self) -> PoolPlan:
        hard = self._hard_limits()
        most = min(limit.most for limit in hard)
        if not most:
            raise ValueError(
                f"a draft cannot serve one target of {self.batch} sequences: {hard[0].what}: {hard[0].remedy}"
            )
        rows = [self._row(sharers) for sharers in _doubling(min(most, self.num_targets, _MOST_SHARERS))]
        limits = [*hard, *self._speed_limit(rows)]
        verification = self._times(1).target.seconds(self.batch)
        return PoolPlan(rows, sorted(limits, key=lambda each: each.most), verification)

    def _hard_limits(self) -> list[Limit]:
        work, place = self.site.workload, Place(self.site.draft_device)

        def fits(sharers: int) -> bool:
            return place.fits(work.draft, sequences=sharers * self.batch, context=work.context)

        held = next((count for count in range(1, _MOST_SHARERS + 2) if not fits(count)), math.inf)
        limits = [
            Limit("the draft's seats", self.seats // self.batch, "raise its --max-num-seqs"),
            Limit("rows of a step", work.max_width // self.batch, "raise its --width, or use more drafts"),
        ]
        if held < math.inf:
            limits.append(Limit("the draft's memory", int(held) - 1, "a larger device, or a shorter context"))
        return sorted(limits, key=lambda each: each.most)

    def _speed_limit(self, rows: list[PoolRow]) -> Iterator[Limit]:
        alone = rows[0]
        for row, after in pairwise(rows):
            if after.offer.rate < _LEAST_SPEED * alone.offer.rate:
                is_host = after.host - alone.host > after.forward - alone.forward
                what = "the draft's host" if is_host else "the draft's forward, or its rows for each target"
                remedy = "fewer sequences a draft" if is_host else "a faster device, or a smaller draft"
                yield Limit(f"speed, by {what}", row.sharers, remedy)
                return

    def _row(self, sharers: int) -> PoolRow:
        times = self._times(sharers)
        offer = max(self._offers(times, sharers), key=lambda each: each.rate)
        host = self.hosts.draft.seconds(self.batch * sharers)
        num_drafts = math.ceil(self.num_targets / sharers)
        return PoolRow(sharers, num_drafts, offer, times.draft.seconds(offer.width) - host, host)

    def _times(self, sharers: int) -> PairTimes:
        work, sequences = self.site.workload, self.batch * sharers
        target = self.site.forward(Place(self.site.device, self.tp), work.target, self.batch)
        draft = self.site.forward(Place(self.site.draft_device), work.draft, sequences)
        seen = replace(
            draft,
            per_row=draft.per_row * sharers,
            slope=draft.slope * sharers,
            overhead=draft.overhead + self.hosts.draft.seconds(sequences),
        )
        # What was measured on the machine itself knows more than what was measured elsewhere.
        return PairTimes(target, seen, host=work.host or self.hosts.target.seconds(self.batch))

    def _offers(self, times: PairTimes, sharers: int) -> Iterator[Offer]:
        """With all the rows that a target may have of a step that others share, or no more than usual."""
        texts, most = self.site.workload.texts(self.batch), self.site.workload.max_width // sharers
        widths = {most, min(most, max(self.batch, WIDTH))}
        for width, lookahead in product(sorted(widths), LOOKAHEADS):
            shape = Shape(width=width, lookahead=lookahead)
            rate = simulate_batch(texts, times, shape, num_tokens=tokens_for(self.batch)).rate
            yield Offer(
                "ssd" if sharers == 1 else "ssd, shared draft",
                self.tp,
                self.tp + 1 / sharers,
                self.batch,
                rate,
                roof(times, texts[0], lookahead, width, batch=self.batch).rate,
                self.site.price(self.tp, 1 / sharers),
                lookahead,
                width,
            )


def _doubling(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]
