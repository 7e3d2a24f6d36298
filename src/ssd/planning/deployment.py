"""Predicts AR, SD and SSD on given devices, for every split between target and draft.

An `Offer` is one way to use devices for one replica. Knows hardware by its data sheet.
"""

from dataclasses import dataclass, replace
from typing import Literal

from ssd.config import MAX_WIDTH
from ssd.planning.hardware import Device
from ssd.planning.models import ModelSize
from ssd.planning.roofline import PUBLISHED, DeviceGroup, Overheads, forward_on
from ssd.planning.rounds import Pair, ar_rate, best_sd, best_ssd, ssd_roof, tokens_a_round
from ssd.planning.times import Forward, PairTimes

Way = Literal["ar", "sd", "ssd"]
TENSOR_PARALLEL = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Workload:
    """Two models, their agreement, batch size and context."""

    target: ModelSize
    draft: ModelSize
    pair: Pair
    batch: int = 1
    """Sequences in a batch."""
    context: int = 1024
    host: float = 0.0
    """Seconds per round in which the target waits for the host."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One replica: its decoding mode, devices and predicted speed."""

    way: Way
    tp: int
    num_devices: int
    batch: int
    rate: float
    """Tokens per second of the whole batch."""
    roof: float
    lookahead: int = 0

    @property
    def per_user(self) -> float:
        return self.rate / self.batch

    @property
    def per_device(self) -> float:
        return self.rate / self.num_devices


@dataclass(frozen=True, slots=True)
class Site:
    """The kinds of devices for target and draft, and the workload."""

    workload: Workload
    device: Device
    draft_device: Device
    overheads: Overheads = PUBLISHED

    def offers(self, num_devices: int) -> list[Offer]:
        """Every way to run one replica on at most `num_devices`."""
        found: list[Offer] = []
        for tp in self._sizes(num_devices):
            if self.fits(tp, beside_draft=False):
                found.append(self.ar(tp))
                if tp < num_devices and self.draft_fits and self.workload.batch <= MAX_WIDTH:
                    found.append(self.ssd(tp))
            if self.fits(tp, beside_draft=True):
                found.append(self.sd(tp))
        if not found:
            raise ValueError(
                f"{self.workload.target.name} does not fit on {num_devices} of {self.device.name}: more "
                "devices, or --target-weights fp8"
            )
        return found

    def without_sd(self, num_devices: int) -> list[int]:
        """Tensor-parallel sizes on which the target fits, but not together with the draft."""
        return [
            tp
            for tp in self._sizes(num_devices)
            if self.fits(tp, beside_draft=False) and not self.fits(tp, beside_draft=True)
        ]

    def _sizes(self, num_devices: int) -> list[int]:
        return [tp for tp in TENSOR_PARALLEL if tp <= num_devices and (tp == 1 or self.device.link)]

    def fits(self, tp: int, *, beside_draft: bool) -> bool:
        """`beside_draft`: the draft is on the target's devices too, as in SD."""
        work = self.workload
        held = work.target
        if beside_draft:
            held = replace(held, params=held.params + work.draft.params * tp)
        return DeviceGroup(self.device, tp).fits(held, sequences=work.batch, context=work.context)

    @property
    def draft_fits(self) -> bool:
        """Whether the draft fits on its own device, as in SSD."""
        work = self.workload
        return DeviceGroup(self.draft_device).fits(work.draft, sequences=work.batch, context=work.context)

    def ar(self, tp: int) -> Offer:
        batch = self.workload.batch
        rate = ar_rate(self.times(tp, self.device), batch=batch)
        return Offer("ar", tp, tp, batch, rate, rate)

    def sd(self, tp: int) -> Offer:
        """Target and draft take turns on the same devices."""
        batch, acceptance = self.workload.batch, self.workload.pair.acceptance
        times = self.times(tp, self.device)
        best = best_sd(times, acceptance, batch=batch)
        with_a_free_draft = ar_rate(times, batch=batch) * tokens_a_round(acceptance, best.lookahead)
        return Offer("sd", tp, tp, batch, best.rate, with_a_free_draft, best.lookahead)

    def ssd(self, tp: int) -> Offer:
        batch, pair = self.workload.batch, self.workload.pair
        times = self.times(tp, self.draft_device)
        best = best_ssd(times, pair, batch=batch)
        roof = ssd_roof(times, pair.acceptance, batch=batch)
        return Offer("ssd", tp, tp + 1, batch, best.rate, roof, best.lookahead)

    def times(self, tp: int, draft_device: Device) -> PairTimes:
        target = self._forward(DeviceGroup(self.device, tp), self.workload.target)
        draft = self._forward(DeviceGroup(draft_device), self.workload.draft)
        return PairTimes(target, draft, host=self.workload.host)

    def _forward(self, place: DeviceGroup, model: ModelSize) -> Forward:
        work = self.workload
        return forward_on(place, model, sequences=work.batch, context=work.context, overheads=self.overheads)
