"""What a run says: rates, how much faster this engine's best case is than each other, and where texts part.

Ratios are taken within a prompt and turn, in which all engines came one after the other; a prompt counts with
the median of its turns, and intervals are over prompts. The interval of the best of several cases holds for
any of them that may be the best. Equal texts are counted, not judged: in bfloat16 engines round differently.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers.registry import SSD
from ssd.bench.statistics import Estimate, joint_confidence, median_with_interval

TOGETHER = "prompts of all data sets together"
Engine = tuple[str, str]
"""A peer and its case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """One text of one peer."""

    dataset: str
    prompt: int
    peer: str
    case: str
    tokens: Sequence[int]
    first_token: float
    """Seconds from the request to its first token."""
    seconds_per_token: float
    """Mean of the tokens after those that came first."""
    turn: int = 0

    @property
    def rate(self) -> float:
        return 1 / self.seconds_per_token

    @property
    def place(self) -> tuple[str, int, int]:
        return self.dataset, self.prompt, self.turn


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigures:
    peer: str
    case: str
    rate: Estimate
    """Output tokens a second, after the first."""
    first_token: float
    """Median seconds."""
    ratio: Estimate | None
    """Our best case over this one; None for itself."""
    same: str
    """How many texts are those of the first case of this engine."""


class PeersFigures:
    def __init__(self, records: Sequence[PeerRecord]) -> None:
        if not records:
            raise ValueError("nothing was measured yet")
        self._texts = defaultdict[Engine, dict[tuple[str, int, int], PeerRecord]](dict)
        for each in records:
            # A prompt that was measured again counts as it was measured last.
            self._texts[each.peer, each.case][each.place] = each
        datasets = list(dict.fromkeys(each.dataset for each in records))
        self.tables = [*datasets, TOGETHER] if len(datasets) > 1 else datasets
        self._ours = [engine for engine in self._texts if engine[0] == SSD]

    def rows(self, dataset: str) -> list[PeerFigures]:
        best = self.best(dataset, self._ours)
        return [self._row(engine, dataset, best) for engine in self._texts if self._of(engine, dataset)]

    def best(self, dataset: str, engines: Iterable[Engine]) -> Engine | None:
        rates = {
            engine: statistics.median(each.rate for each in found)
            for engine in engines
            if (found := self._of(engine, dataset))
        }
        return max(rates, key=lambda engine: rates[engine]) if rates else None

    def verdict(self, dataset: str) -> str | None:
        """This engine's best beside the best that any peer has."""
        peers = [engine for engine in self._texts if engine[0] != SSD]
        ours, theirs = self.best(dataset, self._ours), self.best(dataset, peers)
        if ours is None or theirs is None:
            return None
        among = joint_confidence(len(peers) * len(self._ours))
        ratio = median_with_interval(self._ratios(ours, theirs, dataset), confidence=among)
        return f"{dataset}: {' '.join(ours)} is {ratio} times as fast as {' '.join(theirs)}"

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        for dataset in self.tables:
            yield from (f"## {dataset}", "")
            yield "| engine | case | tok/s (95 %) | first token, s | SSD's best over it (95 %) | same text |"
            yield "| --- | --- | --- | --- | --- | --- |"
            for row in self.rows(dataset):
                ratio = "" if row.ratio is None else str(row.ratio)
                cells = (row.peer, row.case, str(row.rate), f"{row.first_token:.2f}", ratio, row.same)
                yield f"| {' | '.join(cells)} |"
            yield ""
        yield from (f"- {line}" for name in self.tables if (line := self.verdict(name)))

    def _row(self, engine: Engine, dataset: str, best: Engine | None) -> PeerFigures:
        found = self._of(engine, dataset)
        ratios = [] if best is None or engine == best else self._ratios(best, engine, dataset)
        confidence = joint_confidence(len(self._ours))
        return PeerFigures(
            peer=engine[0],
            case=engine[1],
            rate=median_with_interval(_by_prompt((each, each.rate) for each in found)),
            first_token=statistics.median(each.first_token for each in found),
            ratio=median_with_interval(ratios, confidence=confidence) if ratios else None,
            same=self._agreement(engine, dataset),
        )

    def _agreement(self, engine: Engine, dataset: str) -> str:
        reference = next(iter(self._ours), engine)
        if engine == reference:
            return ""
        pairs = list(self._pairs(engine, reference, dataset))
        return f"{sum(list(one.tokens) == list(other.tokens) for one, other in pairs)}/{len(pairs)}"

    def _ratios(self, ours: Engine, theirs: Engine, dataset: str) -> list[float]:
        pairs = self._pairs(ours, theirs, dataset)
        return _by_prompt((above, above.rate / below.rate) for above, below in pairs)

    def _pairs(self, one: Engine, other: Engine, dataset: str) -> Iterator[tuple[PeerRecord, PeerRecord]]:
        for each in self._of(one, dataset):
            if (beside := self._texts[other].get(each.place)) is not None:
                yield each, beside

    def _of(self, engine: Engine, dataset: str) -> list[PeerRecord]:
        return [each for each in self._texts[engine].values() if dataset in (TOGETHER, each.dataset)]


def _by_prompt(values: Iterable[tuple[PeerRecord, float]]) -> list[float]:
    """The median of each prompt's turns."""
    found = defaultdict[tuple[str, int], list[float]](list)
    for record, value in values:
        found[record.dataset, record.prompt].append(value)
    return [statistics.median(each) for each in found.values()]
