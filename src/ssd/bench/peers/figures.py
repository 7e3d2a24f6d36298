"""What a run among peers says: rates, how much faster this engine's best case is, and where tokens part.

Ratios are taken within a prompt of a wave, where everyone took turns, with bootstrap intervals over
prompts. Whether two engines agree is reported, not judged: in bfloat16 they round differently, and a tie may
fall either way.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ssd.bench.peers.records import PeerRecord
from ssd.bench.peers.registry import SSD
from ssd.bench.statistics import Estimate, mean_of_medians, median_with_interval, paired_ratio

ALL = "mean of the data sets"
Key = tuple[int, str, int]
"""Wave, data set, prompt: what records are paired by."""
Engine = tuple[str, str]
"""A peer and its case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Of a peer's texts with those of this engine's plainest case."""

    num_equal: int
    num_texts: int
    first_difference: float | None
    """Median over the texts that differ: tokens before the first unlike one."""

    def __str__(self) -> str:
        where = "" if self.first_difference is None else f", else from {self.first_difference:.0f}"
        return f"{self.num_equal}/{self.num_texts}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigures:
    dataset: str
    peer: str
    case: str
    rate: Estimate
    """Output tokens a second, after the first."""
    first_token: float
    """Median seconds."""
    ratio: Estimate | None
    """This engine's best case over this one; None for itself."""
    agreement: Agreement | None
    """None for the case that others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """This engine's best beside the best that any peer has, plain or speculative."""

    dataset: str
    ours: str
    theirs: str
    ratio: Estimate


class PeersFigures:
    def __init__(self, records: Sequence[PeerRecord]) -> None:
        if not records:
            raise ValueError("nothing was measured yet")
        self._by_engine = defaultdict[Engine, dict[Key, PeerRecord]](dict)
        for each in records:
            self._by_engine[each.peer, each.case][each.wave, each.dataset, each.prompt] = each
        self.datasets = list(dict.fromkeys(each.dataset for each in records))
        self._reference = next((engine for engine in self._by_engine if engine[0] == SSD), None)

    def best_case(self, dataset: str) -> Engine | None:
        """Of this engine, by its median rate."""
        rates = {
            engine: statistics.median(each.rate for each in found.values())
            for engine in self._by_engine
            if engine[0] == SSD and (found := self._of(engine, dataset))
        }
        return max(rates, key=lambda engine: rates[engine]) if rates else None

    def rows(self, dataset: str) -> list[PeerFigures]:
        ours = self.best_case(dataset)
        return [self._row(engine, dataset, ours) for engine in self._by_engine if self._of(engine, dataset)]

    def verdict(self, dataset: str) -> Verdict | None:
        ours = self.best_case(dataset)
        rows = [row for row in self.rows(dataset) if row.ratio is not None and row.peer != SSD]
        if ours is None or not rows:
            return None
        best = min(rows, key=_ratio_of)
        return Verdict(
            dataset=dataset, ours=" ".join(ours), theirs=f"{best.peer} {best.case}", ratio=_known(best.ratio)
        )

    def verdict_on_all(self) -> Verdict | None:
        """The mean over data sets of the ratio over the best peer of each."""
        found = [verdict for name in self.datasets if (verdict := self.verdict(name)) is not None]
        if len(found) < 2:
            return None
        samples = [self._ratios_of(verdict) for verdict in found]
        theirs = " / ".join(dict.fromkeys(verdict.theirs for verdict in found))
        ours = " / ".join(dict.fromkeys(verdict.ours for verdict in found))
        return Verdict(dataset=ALL, ours=ours, theirs=theirs, ratio=mean_of_medians(samples))

    def _ratios_of(self, verdict: Verdict) -> list[float]:
        (our_peer, our_case), (their_peer, their_case) = verdict.ours.split(), verdict.theirs.split()
        ours = self._of((our_peer, our_case), verdict.dataset)
        theirs = self._of((their_peer, their_case), verdict.dataset)
        return [ours[key].rate / theirs[key].rate for key in ours if key in theirs]

    def _row(self, engine: Engine, dataset: str, best: Engine | None) -> PeerFigures:
        found = self._of(engine, dataset)
        ratio = None
        if best is not None and engine != best:
            ours = self._of(best, dataset)
            both = [key for key in found if key in ours]
            if both:
                ratio = paired_ratio([ours[key].rate for key in both], [found[key].rate for key in both])
        return PeerFigures(
            dataset=dataset,
            peer=engine[0],
            case=engine[1],
            rate=median_with_interval([each.rate for each in found.values()]),
            first_token=statistics.median(each.first_token for each in found.values()),
            ratio=ratio,
            agreement=self._agreement(engine, dataset),
        )

    def _agreement(self, engine: Engine, dataset: str) -> Agreement | None:
        if self._reference is None or engine == self._reference:
            return None
        found, ours = self._of(engine, dataset), self._of(self._reference, dataset)
        parted = [first_difference(found[key].tokens, ours[key].tokens) for key in found if key in ours]
        unlike = [place for place in parted if place is not None]
        return Agreement(
            num_equal=len(parted) - len(unlike),
            num_texts=len(parted),
            first_difference=statistics.median(unlike) if unlike else None,
        )

    def _of(self, engine: Engine, dataset: str) -> Mapping[Key, PeerRecord]:
        return {key: each for key, each in self._by_engine[engine].items() if key[1] == dataset}


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """How many tokens two texts share before they part; None where they do not."""
    if list(one) == list(other):
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _known(ratio: Estimate | None) -> Estimate:
    if ratio is None:
        raise ValueError("no prompt was answered by both")
    return ratio


def _ratio_of(row: PeerFigures) -> float:
    return _known(row.ratio).value
