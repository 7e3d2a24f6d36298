"""What a run among peers says: rates, how much faster this engine's best case is, and where tokens part.

Ratios are taken within a prompt of a wave, a turn and a sitting, where everyone came one after the other; a
prompt counts with the median of its turns, and intervals are over prompts. Where the best of several is
shown, its interval is so wide that it would hold for whichever were the best. Waves are days of their
own: this engine has a row in each of them. A prompt that was measured again counts once, as it was measured
last. Whether two engines agree is reported, not judged: in bfloat16 they round differently, and a tie may
fall either way.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.peers.cases import has_our_draft, own_case
from benchmarks.peers.records import PeerRecord
from benchmarks.peers.registry import SSD
from ssd.bench.cases import parse_case
from ssd.bench.statistics import Estimate, joint_confidence, median_with_interval

ALL = "mean of the data sets"
TOGETHER = "prompts of all data sets together"
Drafts = Literal["same", "any"]
"""Which cases of this engine count: those whose draft is the peers' own, weight for weight; or all."""
Key = tuple[int, str, int, int]
"""Wave, data set, prompt, turn: what records are paired by, within a sitting."""
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
    wave: int
    peer: str
    case: str
    rate: Estimate
    """Output tokens a second, after the first."""
    first_token: float
    """Median seconds."""
    ratio: Estimate | None
    """Our best case over this one; None for itself."""
    agreement: Agreement | None
    """None for the case that others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """This engine's best beside the best that any peer has, plain or speculative.

    Or, where `drafts` is None, another engine with our draft beside one of its own cases.
    """

    dataset: str
    drafts: Drafts | None
    ours: str
    theirs: str
    ratio: Estimate


@dataclass(frozen=True, slots=True)
class _Beside:
    """This engine's best and the peer that is least behind it on a data set."""

    ours: Engine
    theirs: Engine
    ratios: Sequence[float]
    among: int
    """Pairs that could have been the best."""


class PeersFigures:
    def __init__(self, records: Sequence[PeerRecord]) -> None:
        if not records:
            raise ValueError("nothing was measured yet")
        self._by_engine = defaultdict[Engine, dict[Key, dict[int, PeerRecord]]](dict)
        for each in records:
            sittings = self._by_engine[each.peer, each.case]
            key = (each.wave, each.dataset, each.prompt, each.turn)
            sittings.setdefault(key, {})[each.sitting] = each
        self.datasets = list(dict.fromkeys(each.dataset for each in records))
        self.waves = sorted({each.wave for each in records})
        ours = (engine for engine in self._by_engine if engine[0] == SSD)
        self._reference = next(ours, next(iter(self._by_engine)))
        """Whose texts the others are compared with."""

    @property
    def tables(self) -> list[str]:
        """Data sets; several of them are also taken together."""
        return [*self.datasets, TOGETHER] if len(self.datasets) > 1 else self.datasets

    def has_texts_of(self, worker: str) -> bool:
        """A worker is called by its peer, or by its peer and its case."""
        return any(worker in (peer, f"{peer}-{case}") for peer, case in self._by_engine)

    @property
    def drafts(self) -> list[Drafts]:
        """Whether there is anything that only one of the verdicts counts."""
        ours = [case for peer, case in self._by_engine if peer == SSD]
        return ["same"] if all(map(has_same_draft, ours)) else ["same", "any"]

    def best_case(self, dataset: str, drafts: Drafts = "any") -> Engine | None:
        """Of this engine, by its median rate."""
        return self._fastest(self._ours(drafts), dataset)

    def best_inside(self, dataset: str, peer: str | None = None) -> Engine | None:
        """Of our draft inside other engines, or inside this one."""
        return self._fastest(self._inside(peer), dataset)

    def rows(self, dataset: str) -> list[PeerFigures]:
        ours = self.best_case(dataset) or self.best_inside(dataset)
        return [
            self._row(engine, dataset, wave, ours)
            for wave in self.waves
            for engine in self._by_engine
            if self._of(engine, dataset, wave)
        ]

    def verdict(self, dataset: str, drafts: Drafts) -> Verdict | None:
        found = self._beside(dataset, drafts)
        if found is None:
            return None
        return Verdict(
            dataset=dataset,
            drafts=drafts,
            ours=" ".join(found.ours),
            theirs=" ".join(found.theirs),
            ratio=median_with_interval(found.ratios, confidence=joint_confidence(found.among)),
        )

    def verdict_on_mean(self, drafts: Drafts) -> Verdict | None:
        """The mean over data sets of the ratio over the best peer of each."""
        found = [each for name in self.datasets if (each := self._beside(name, drafts)) is not None]
        if len(found) < 2:
            return None
        return Verdict(
            dataset=ALL,
            drafts=drafts,
            ours=" / ".join(dict.fromkeys(" ".join(each.ours) for each in found)),
            theirs=" / ".join(dict.fromkeys(" ".join(each.theirs) for each in found)),
            ratio=mean_of_medians([each.ratios for each in found], among=max(each.among for each in found)),
        )

    def verdicts_inside(self, dataset: str) -> list[Verdict]:
        """Of an engine that our draft runs inside of: with it beside each case without."""
        return [
            Verdict(
                dataset=dataset,
                drafts=None,
                ours=" ".join(ours),
                theirs=" ".join(theirs),
                ratio=median_with_interval(ratios, confidence=joint_confidence(len(self._inside(theirs[0])))),
            )
            for theirs in self._by_engine
            if not _is_inside(theirs)
            and (ours := self.best_inside(dataset, theirs[0]))
            and (ratios := self._ratios(ours, theirs, dataset))
        ]

    def _ours(self, drafts: Drafts) -> list[Engine]:
        ours = [engine for engine in self._by_engine if engine[0] == SSD]
        return [engine for engine in ours if drafts == "any" or has_same_draft(engine[1])]

    def _inside(self, peer: str | None) -> list[Engine]:
        return [engine for engine in self._by_engine if _is_inside(engine) and peer in (None, engine[0])]

    def _fastest(self, engines: Sequence[Engine], dataset: str) -> Engine | None:
        rates = {
            engine: statistics.median(each.rate for each in found.values())
            for engine in engines
            if (found := self._of(engine, dataset))
        }
        return max(rates, key=lambda engine: rates[engine]) if rates else None

    def _beside(self, dataset: str, drafts: Drafts) -> _Beside | None:
        ours = self.best_case(dataset, drafts)
        if ours is None:
            return None
        peers = {
            engine: ratios
            for engine in self._by_engine
            if engine[0] != SSD and not _is_inside(engine) and (ratios := self._ratios(ours, engine, dataset))
        }
        if not peers:
            return None
        # In the wave in which it was measured, which may have been a slow one for all.
        theirs = min(peers, key=lambda engine: statistics.median(peers[engine]))
        return _Beside(ours, theirs, peers[theirs], len(peers) * len(self._ours(drafts)))

    def _ratios(self, ours: Engine, theirs: Engine, dataset: str, wave: int | None = None) -> list[float]:
        pairs = self._pairs(ours, theirs, dataset, wave)
        return _by_prompt((above, above.rate / below.rate) for above, below in pairs)

    def _pairs(
        self, one: Engine, other: Engine, dataset: str, wave: int | None
    ) -> Iterator[tuple[PeerRecord, PeerRecord]]:
        """Of each prompt and turn, what both wrote in the last sitting in which both did."""
        ones, others = self._by_engine[one], self._by_engine[other]
        for key in ones:
            both = ones[key].keys() & others.get(key, {}).keys()
            if _is_of(key, dataset, wave) and both:
                yield ones[key][max(both)], others[key][max(both)]

    def _row(self, engine: Engine, dataset: str, wave: int, best: Engine | None) -> PeerFigures:
        found = self._of(engine, dataset, wave)
        ratios = [] if best is None or engine == best else self._ratios(best, engine, dataset, wave)
        return PeerFigures(
            dataset=dataset,
            wave=wave,
            peer=engine[0],
            case=engine[1],
            rate=median_with_interval(_by_prompt((each, each.rate) for each in found.values())),
            first_token=statistics.median(each.first_token for each in found.values()),
            ratio=median_with_interval(ratios, confidence=self._confidence()) if ratios else None,
            agreement=self._agreement(engine, dataset, wave),
        )

    def _confidence(self) -> float:
        """Of this engine's best beside another: of our draft's inside others, where it takes no part."""
        return joint_confidence(len(self._ours("any") or self._inside(None)))

    def _agreement(self, engine: Engine, dataset: str, wave: int) -> Agreement | None:
        if engine == self._reference:
            return None
        pairs = self._pairs(engine, self._reference, dataset, wave)
        parted = [first_difference(theirs.tokens, ours.tokens) for theirs, ours in pairs]
        unlike = [place for place in parted if place is not None]
        return Agreement(
            num_equal=len(parted) - len(unlike),
            num_texts=len(parted),
            first_difference=statistics.median(unlike) if unlike else None,
        )

    def _of(self, engine: Engine, dataset: str, wave: int | None = None) -> Mapping[Key, PeerRecord]:
        """The last text of each prompt and turn, of one wave or of all."""
        by_key = self._by_engine[engine].items()
        return {key: sittings[max(sittings)] for key, sittings in by_key if _is_of(key, dataset, wave)}


def _is_inside(engine: Engine) -> bool:
    """Whether our draft runs in another engine there."""
    return engine[0] != SSD and has_our_draft(engine[1])


def _by_prompt(values: Iterable[tuple[PeerRecord, float]]) -> list[float]:
    """The median of each prompt's turns."""
    found = defaultdict[tuple[int, str, int], list[float]](list)
    for record, value in values:
        found[record.wave, record.dataset, record.prompt].append(value)
    return [statistics.median(each) for each in found.values()]


def _is_of(key: Key, dataset: str, wave: int | None) -> bool:
    return dataset in (TOGETHER, key[1]) and wave in (None, key[0])


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """How many tokens two texts share before they part; None where they do not."""
    if list(one) == list(other):
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def has_same_draft(case: str) -> bool:
    """Whether this engine's models have all of their weights, in the model's precision, as peers' do."""
    own, target_precision = own_case(case)
    parsed = parse_case(own)
    same_draft = parsed.draft_precision in (None, "model") and parsed.draft_head is None
    return same_draft and target_precision == "model"


def mean_of_medians(groups: Sequence[Sequence[float]], *, among: int = 1) -> Estimate:
    """Each group counts the same. The groups' intervals hold together, and then their mean does too.

    `among`: the number of candidates that the groups were chosen from; the interval holds for all of them.
    """
    confidence = joint_confidence(among * len(groups))
    found = [median_with_interval(group, confidence=confidence) for group in groups]
    mean, count = statistics.mean(each.value for each in found), sum(each.count for each in found)
    intervals = [each.interval for each in found if each.interval is not None]
    if len(intervals) < len(found):
        return Estimate(value=mean, count=count)
    low, high = (statistics.mean(ends) for ends in zip(*intervals, strict=True))
    return Estimate(value=mean, low=low, high=high, count=count)
