"""From one replica to thousands: how drafts are shared, and the cheapest fleet for so many tokens a second.

Each user must get no less than a given speed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ssd.planning.deployment import TENSOR_PARALLEL, Offer, Site
from ssd.planning.roofline import Place

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_FLEET_BATCHES = (1, 4, 16, 64, 256)
SPEEDS = (20, 50, 100, 150, 200, 250, 300, 400)
_FLAT = 1.05
"""A shared draft's step may be this much longer than one for a single target."""
_MAX_SHARERS = 64


@dataclass(frozen=True, slots=True)
class Fleet:
    offer: Offer
    num_replicas: int
    num_drafts: int
    num_devices: int
    price: float | None
    """Dollars an hour."""


def sharers(site: Site, batch: int, width: int) -> int:
    """How many targets one draft device serves in the same forwards before these get longer."""
    work = site.workload
    place = Place(site.draft_device)

    def seconds(count: int) -> float:
        draft = site.forward(place, work.draft, batch * count)
        return draft.seconds(width * count)

    count = 1
    while (
        count < _MAX_SHARERS
        and place.fits(work.draft, sequences=2 * count * batch, context=work.context)
        and seconds(2 * count) <= _FLAT * seconds(1)
    ):
        count *= 2
    return count


def offers(site: Site, batches: Sequence[int] = _FLEET_BATCHES) -> list[Offer]:
    """Every way to run a replica, at every size and batch that fits."""
    found: list[Offer] = []
    for tp in TENSOR_PARALLEL:
        if tp > 1 and not site.device.link:
            continue
        for batch in batches:
            if not site.fits(tp, batch, beside_draft=False):
                continue
            found.append(site.ar(tp, batch))
            if site.fits(tp, batch, beside_draft=True):
                found.append(site.sd(tp, batch))
            if batch <= site.workload.max_width and site.draft_fits(batch):
                alone = site.ssd(tp, batch)
                found.append(alone)
                count = sharers(site, batch, alone.width)
                if count > 1:
                    found.append(site.ssd(tp, batch, sharers=count))
    return found


def cheapest(found: Sequence[Offer], least_per_user: float) -> Offer | None:
    """By price, or by devices where there is no price."""
    fast = [each for each in found if each.per_user >= least_per_user]
    return min(fast, key=lambda each: each.per_million or 1 / each.per_device, default=None)


def fleet_of(offer: Offer, tokens_a_second: float) -> Fleet:
    replicas = max(1, math.ceil(tokens_a_second / offer.rate))
    drafts = math.ceil(replicas * (offer.num_devices - offer.tp) - 1e-9)
    devices = replicas * offer.tp + drafts
    price = None if offer.price is None else offer.price / offer.num_devices * devices
    return Fleet(offer, replicas, drafts, devices, price)


@dataclass(frozen=True, slots=True)
class BatchRow:
    batch: int
    ar: Offer
    sd: Offer
    ssd: Offer | None

    @property
    def pays_in_speed(self) -> bool:
        """A user of SSD gets more than with the best of the others, on the same target devices."""
        return self.ssd is not None and self.ssd.rate > max(self.ar.rate, self.sd.rate)

    @property
    def pays_per_device(self) -> bool:
        best = max(self.ar.per_device, self.sd.per_device)
        return self.ssd is not None and self.ssd.per_device > best


def batch_rows(
    site: Site, tp: int, batches: Sequence[int] = BATCHES, *, most_devices: float = math.inf
) -> list[BatchRow]:
    """`most_devices`: of a replica; where the draft would be one too many there is no SSD."""

    def ahead(batch: int) -> Offer | None:
        is_possible = batch <= site.workload.max_width and site.draft_fits(batch) and tp + 1 <= most_devices
        return site.ssd(tp, batch) if is_possible else None

    return [
        BatchRow(batch, site.ar(tp, batch), site.sd(tp, batch), ahead(batch))
        for batch in batches
        if site.fits(tp, batch, beside_draft=True)
    ]


@dataclass(frozen=True, slots=True)
class SpeedRow:
    speed: float
    """Tokens a second that each user must get, at least."""
    fleet: Fleet | None
    next_best: Offer | None
    """The cheapest of another way: what one would have to pay without it."""


def by_speed(
    found: Sequence[Offer], tokens_a_second: float, speeds: Sequence[float] = SPEEDS
) -> list[SpeedRow]:
    rows: list[SpeedRow] = []
    for speed in speeds:
        best = cheapest(found, speed)
        if best is None:
            rows.append(SpeedRow(speed, None, None))
            continue
        kind = best.way.split(",")[0]
        others = [each for each in found if each.way.split(",")[0] != kind]
        rows.append(SpeedRow(speed, fleet_of(best, tokens_a_second), cheapest(others, speed)))
    return rows


@dataclass(frozen=True, slots=True)
class ShareRow:
    num_targets: int
    num_drafts: int
    """Devices that grow all their trees, several targets' in one forward."""


def shared_drafts(site: Site, sizes: Sequence[int] = (8, 64, 512, 4096)) -> list[ShareRow]:
    """For targets of one text each."""
    tp = min(each.tp for each in site.splits(max(TENSOR_PARALLEL)) if each.way == "ar")
    together = sharers(site, 1, site.ssd(tp).width)
    return [ShareRow(size, math.ceil(size / together)) for size in sizes]
