"""What a target and a draft yield on given devices: rates, roofs and prices of AR, SD and SSD side by side.

SSD is this engine's rolling tree, simulated; its width and lookahead are the best of a few. `Offer` is one
way to spend devices on one replica. Knows hardware by its data sheet; no fleets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ssd.config import MAX_WIDTH
from ssd.planning.followed_text import Shape
from ssd.planning.hardware import Device
from ssd.planning.models import ModelSize
from ssd.planning.rolling import simulate_batch
from ssd.planning.roofline import PUBLISHED, Overheads, Place, forward_on
from ssd.planning.rounds import ar_rate, best_sd, roof, tokens_a_round
from ssd.planning.text import Text, drawn_text
from ssd.planning.times import Forward, PairTimes

Way = Literal["ar", "sd", "ssd", "ssd, shared draft"]
TENSOR_PARALLEL = (1, 2, 4, 8)
LOOKAHEADS = (8, 16)
WIDTH = 12
_NUM_TOKENS, _NUM_TOKENS_EACH = 1000, 30
"""Simulated for a rate: in all, and of each sequence, at least."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Two models, how well they agree, and what is asked of them."""

    target: ModelSize
    draft: ModelSize
    acceptance: float
    coverage: float = 0.75
    """Of rejections, how many have their token among the draft's next three guesses."""
    repeats: float = 0.0
    """Share of places at which the earlier text knows what follows."""
    context: int = 1024
    host: float = 0.0

    max_width: int = MAX_WIDTH
    """Rows of a draft step; the engine's own limit, or what it would be if that were lifted."""

    def texts(self, batch: int) -> list[Text]:
        """Long enough that none ends while a rate is simulated."""
        length = 2 * tokens_for(batch) // batch
        return [
            drawn_text(self.acceptance, self.coverage, length=length, seed=seed, repeats=self.repeats)
            for seed in range(batch)
        ]


def tokens_for(batch: int) -> int:
    return max(_NUM_TOKENS, _NUM_TOKENS_EACH * batch)


@dataclass(frozen=True, slots=True)
class Offer:
    """One replica: how it decodes, what it takes, what comes out."""

    way: Way
    tp: int
    num_devices: float
    """Of its own, and its share of a shared draft."""
    batch: int
    rate: float
    """Tokens a second of the whole batch."""
    roof: float
    price: float | None
    """Dollars an hour, of all its devices."""
    lookahead: int = 0
    width: int = 0

    @property
    def per_user(self) -> float:
        return self.rate / self.batch

    @property
    def per_device(self) -> float:
        return self.rate / self.num_devices

    @property
    def per_million(self) -> float | None:
        """Dollars for a million tokens."""
        return None if self.price is None else self.price / (self.rate * 3600) * 1e6


@dataclass(frozen=True)
class Site:
    """Devices to spend: the target's kind, and the draft's, which may be another."""

    workload: Workload
    device: Device
    draft_device: Device
    overheads: Overheads = PUBLISHED

    @cached_property
    def _known(self) -> dict[tuple[int, int, int], Offer]:
        return {}

    def times(self, tp: int, batch: int, *, sharers: int = 1) -> PairTimes:
        """`sharers`: targets whose trees one draft device grows in the same forwards."""
        work = self.workload
        target = self.forward(Place(self.device, tp), work.target, batch)
        draft = self.forward(Place(self.draft_device), work.draft, batch * sharers)
        # What one target sees of a shared step: as many rows again for each of the others.
        seen = replace(draft, per_row=draft.per_row * sharers, slope=draft.slope * sharers)
        return PairTimes(target, seen, host=work.host)

    def forward(self, place: Place, model: ModelSize, sequences: int) -> Forward:
        return forward_on(
            place, model, sequences=sequences, context=self.workload.context, overheads=self.overheads
        )

    def fits(self, tp: int, batch: int, *, beside_draft: bool) -> bool:
        """`beside_draft`: in SD the draft lives on the target's devices too."""
        work = self.workload
        room = Place(self.device, tp)
        if beside_draft:
            both = replace(work.target, params=work.target.params + work.draft.params * tp)
            return room.fits(both, sequences=batch, context=work.context)
        return room.fits(work.target, sequences=batch, context=work.context)

    def draft_fits(self, batch: int) -> bool:
        """In SSD the draft has a device of its own, which may be a smaller one."""
        work = self.workload
        return Place(self.draft_device).fits(work.draft, sequences=batch, context=work.context)

    def ar(self, tp: int, batch: int = 1) -> Offer:
        times = self.times(tp, batch)
        rate = ar_rate(times, batch=batch)
        return Offer("ar", tp, tp, batch, rate, rate, self.price(tp, 0.0))

    def sd(self, tp: int, batch: int = 1) -> Offer:
        """The draft takes turns with the target, on one of its devices."""
        times = self.times(tp, batch)
        on_target = replace(
            times,
            draft=self.forward(Place(self.device), self.workload.draft, batch),
        )
        best = best_sd(on_target, self.workload.acceptance, batch=batch)
        free = ar_rate(times, batch=batch) * tokens_a_round(self.workload.acceptance, best.lookahead)
        return Offer("sd", tp, tp, batch, best.rate, free, self.price(tp, 0.0), best.lookahead)

    def ssd(self, tp: int, batch: int = 1, *, sharers: int = 1) -> Offer:
        """The best of a few settings; `sharers` targets share the draft's device and its price."""
        known = self._known
        if (tp, batch, sharers) not in known:
            known[tp, batch, sharers] = max(self._ssd_offers(tp, batch, sharers), key=lambda each: each.rate)
        return known[tp, batch, sharers]

    def _ssd_offers(self, tp: int, batch: int, sharers: int) -> Iterator[Offer]:
        work, times = self.workload, self.times(tp, batch, sharers=sharers)
        texts = work.texts(batch)
        way: Way = "ssd" if sharers == 1 else "ssd, shared draft"
        for width in {WIDTH, work.max_width} if batch > 1 else {WIDTH}:
            # A narrower step could not even reach every sequence.
            if width < batch:
                continue
            for lookahead in LOOKAHEADS:
                shape = Shape(width=width, lookahead=lookahead)
                rate = simulate_batch(texts, times, shape, num_tokens=tokens_for(batch)).rate
                above = roof(times, texts[0], lookahead, width, batch=batch).rate
                devices = tp + 1 / sharers
                yield Offer(
                    way, tp, devices, batch, rate, above, self.price(tp, 1 / sharers), lookahead, width
                )

    def price(self, num_target: float, num_draft: float) -> float | None:
        if self.device.price is None or (num_draft and self.draft_device.price is None):
            return None
        return num_target * self.device.price + num_draft * (self.draft_device.price or 0.0)

    def least_tp(self, num_devices: int, batch: int = 1) -> int:
        """The fewest devices that hold the target."""
        sizes = [tp for tp in TENSOR_PARALLEL if tp <= num_devices and (tp == 1 or self.device.link)]
        fitting = [tp for tp in sizes if self.fits(tp, batch, beside_draft=False)]
        if not fitting:
            raise self._no_room(num_devices)
        return min(fitting)

    def _no_room(self, num_devices: int) -> ValueError:
        return ValueError(
            f"{self.workload.target.name} does not fit on {num_devices} of {self.device.name}: more "
            "devices, or --target-weights fp8"
        )

    def splits(self, num_devices: int, batch: int = 1) -> list[Offer]:
        """Every way to give one replica at most so many devices."""
        offers: list[Offer] = []
        for tp in TENSOR_PARALLEL:
            if tp > num_devices or (tp > 1 and not self.device.link):
                continue
            if self.fits(tp, batch, beside_draft=False):
                offers.append(self.ar(tp, batch))
                if tp + 1 <= num_devices and self.draft_fits(batch) and batch <= self.workload.max_width:
                    offers.append(self.ssd(tp, batch))
            if self.fits(tp, batch, beside_draft=True):
                offers.append(self.sd(tp, batch))
        if not offers:
            raise self._no_room(num_devices)
        return offers
