"""What load tells: throughput, what a user sees, and up to where one endpoint is better than another.

Knows numbers. Requests of a round share forwards and the machine's mood, so a round is one observation:
intervals are 95 % intervals of medians over rounds, ratios are taken within a round. Whether an endpoint
helps is judged in a closed loop by throughput, in which waiting for a seat and for the first token counts,
and at a rate, which decides the throughput, by what a user sees: tokens a second after the first. Where
requests were lost nothing is judged: those that were answered had the server to themselves.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy

from ssd.bench.load import Answered, Level, LevelRecord, LoadSettings
from ssd.bench.statistics import Estimate, median_with_interval, paired_ratio

Help = Literal[
    "helps", "makes no difference", "slows down", "cannot be judged by so few rounds",
    "cannot be judged, since requests were lost,",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        p50, p90, p99 = numpy.percentile(values, (50, 90, 99)).tolist()
        return cls(p50=p50, p90=p90, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFigures:
    endpoint: str
    level: Level
    throughput: float
    """Output tokens a second, all users together."""
    per_device: float
    user_rate: Estimate
    """Tokens a second that a user sees after the first: median of the rounds' medians over requests."""
    wait: Percentiles
    """Seconds until the first token."""
    per_token: Percentiles
    """Seconds a token after the first."""
    num_requests: int
    num_failed: int
    num_unfinished: int
    """Cut off when the time was over: all other figures are of those that ended before."""
    cost: float | None
    """Of a million tokens, where a device-hour has a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRatio:
    """One endpoint over another at a level."""

    level: Level
    user_rate: Estimate
    throughput: Estimate
    per_device: float
    has_losses: bool
    """Requests of one of them failed, had no token, or were cut off."""

    @property
    def judged(self) -> Estimate:
        return self.throughput if self.level.kind == "users" else self.user_rate

    @property
    def says(self) -> Help:
        if self.has_losses:
            return "cannot be judged, since requests were lost,"
        if self.judged.interval is None:
            return "cannot be judged by so few rounds"
        low, high = self.judged.interval
        return "helps" if low > 1 else "slows down" if high < 1 else "makes no difference"


class LoadFigures:
    def __init__(
        self, settings: LoadSettings, records: Sequence[LevelRecord], price: float | None = None
    ) -> None:
        self.settings, self._price = settings, price
        self._found = defaultdict[tuple[str, Level], list[LevelRecord]](list)
        for record in records:
            self._found[record.endpoint, record.level].append(record)

    def rows(self) -> list[LevelFigures]:
        return [
            row
            for level in self.settings.levels
            for endpoint in self.settings.endpoints
            if (row := self.row(endpoint.name, level)) is not None
        ]

    def row(self, endpoint: str, level: Level) -> LevelFigures | None:
        records = self._found[endpoint, level]
        answers = self._answers(endpoint, level)
        rates, seen = _rates(answers), self._rates_by_round(endpoint, level)
        if not rates:
            return None
        throughput = _num_tokens(answers) / sum(map(_seconds, records))
        devices = next(each.devices for each in self.settings.endpoints if each.name == endpoint)
        return LevelFigures(
            endpoint=endpoint,
            level=level,
            throughput=throughput,
            per_device=throughput / devices,
            user_rate=median_with_interval(list(seen.values())),
            wait=Percentiles.of([each.wait for each in answers]),
            per_token=Percentiles.of([1 / rate for rate in rates]),
            num_requests=len(answers),
            num_failed=sum(record.num_failed for record in records),
            num_unfinished=sum(record.num_unfinished for record in records),
            cost=None if self._price is None else self._price * devices / (throughput * 3600) * 1e6,
        )

    def ratios(self, above: str, below: str) -> list[LevelRatio]:
        """At each level at which both answered."""
        found = []
        for level in self.settings.levels:
            ours, theirs = self.row(above, level), self.row(below, level)
            if ours is None or theirs is None:
                continue
            seen = [self._rates_by_round(name, level) for name in (above, below)]
            if not seen[0].keys() & seen[1].keys():
                continue
            found.append(
                LevelRatio(
                    level=level,
                    user_rate=_by_round(*seen),
                    throughput=_by_round(
                        *(self._throughput_by_round(name, level) for name in (above, below))
                    ),
                    per_device=ours.per_device / theirs.per_device,
                    has_losses=any(each.num_failed or each.num_unfinished for each in (ours, theirs)),
                )
            )
        return found

    def _rates_by_round(self, endpoint: str, level: Level) -> dict[int, float]:
        rates = {record.round: _rates(record.answers) for record in self._found[endpoint, level]}
        return {number: median(each) for number, each in rates.items() if each}

    def _throughput_by_round(self, endpoint: str, level: Level) -> dict[int, float]:
        records = [each for each in self._found[endpoint, level] if _rates(each.answers)]
        return {each.round: _num_tokens(each.answers) / _seconds(each) for each in records}

    def _answers(self, endpoint: str, level: Level) -> list[Answered]:
        return [each for record in self._found[endpoint, level] for each in record.answers]


def in_words(above: str, below: str, ratios: Sequence[LevelRatio]) -> list[str]:
    """Where one is better than the other, where that ends, and what a device brings."""
    lines = []
    by_kind: Mapping[str, list[LevelRatio]] = {
        kind: [each for each in ratios if each.level.kind == kind] for kind in ("users", "rate")
    }
    for found in filter(None, by_kind.values()):
        lines += _runs(above, below, found)
        pays = [each for each in found if each.per_device > 1]
        best = max(found, key=lambda each: each.per_device)
        where = ", ".join(str(each.level) for each in pays) or "no level"
        lines.append(
            f"per device, {above} gives more than {below} at {where}; "
            f"at most {best.per_device:.2f} times as much ({best.level})"
        )
    return lines


def _runs(above: str, below: str, ratios: Sequence[LevelRatio]) -> list[str]:
    """Neighbouring levels that say the same are told together."""
    groups: list[list[LevelRatio]] = []
    for each in ratios:
        if groups and groups[-1][0].says == each.says:
            groups[-1].append(each)
        else:
            groups.append([each])
    lines = []
    for group in groups:
        first, last = group[0], group[-1]
        span = f"at {first.level}" if first is last else f"from {first.level} to {last.level}"
        listed = ", ".join(str(each.judged) for each in group)
        what = "throughput" if first.level.kind == "users" else "rate a user sees"
        lines.append(f"{span}, {above} {group[0].says} beside {below}: {listed} times the {what}")
    return lines


def _by_round(above: Mapping[int, float], below: Mapping[int, float]) -> Estimate:
    both = sorted(above.keys() & below.keys())
    return paired_ratio([above[each] for each in both], [below[each] for each in both])


def _num_tokens(answers: Sequence[Answered]) -> int:
    return sum(each.num_tokens for each in answers)


def _rates(answers: Sequence[Answered]) -> list[float]:
    return [1 / each.per_token for each in answers if each.per_token]


def _seconds(record: LevelRecord) -> float:
    if not record.answers:
        return 0.0
    return max(each.ended for each in record.answers) - min(each.began for each in record.answers)
