"""What a run's records come to: a row of figures for each data set and case.

Knows records, the manifest and what each figure means (docs/bench.md says it in words). Does not know how
figures are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from ssd.bench.bare import tokens_a_round
from ssd.bench.cases import Case, parse_case
from ssd.bench.equality import Equality, check_equality
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import CaseFacts, Manifest
from ssd.bench.records import CaseRecord
from ssd.bench.statistics import Estimate, median_with_interval, paired_ratio

ALL = "all"
"""In place of a data set's name: the prompts of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of the time in the engine's steps."""

    verifying: float
    drafting: float
    """In turns with the target; a draft that works ahead takes none."""
    waiting: float

    @property
    def host(self) -> float:
        return 1 - self.verifying - self.drafting - self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What bounds a draft that works ahead: min(E∞ / T_v, 1 / T_d) tokens a second."""

    tokens_a_round: float
    verify_seconds: float
    verify_rows: int
    draft_seconds: float
    draft_rows: int

    @property
    def rate(self) -> float:
        return min(self.tokens_a_round / self.verify_seconds, 1 / self.draft_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    dataset: str
    case: Case
    rate: Estimate
    """Tokens a second of one text after its first token: what a user sees."""
    output_rate: float
    """Tokens a second of all texts that ran together, prompts included in the time."""
    milliseconds_per_token: Estimate
    first_token: Estimate
    """Seconds."""
    accepted_per_round: float
    hit_rate: float | None
    depths: Sequence[float]
    """Share of rounds in which at least one, two, three … drafted tokens were accepted."""
    shares: Shares
    rate_per_device: float
    tokens_per_gflop: float
    joules_per_token: float | None
    over_ar: Estimate | None
    over_sd: Estimate | None
    """Over the fastest of the run's `sd` cases."""
    roof: Roof | None

    @property
    def efficiency(self) -> float | None:
        return None if self.roof is None else self.rate.value / self.roof.rate


class RunFigures:
    def __init__(self, folder: RunFolder) -> None:
        self.manifest: Manifest = folder.manifest()
        self.records = folder.records()
        if not self.records:
            raise ValueError(f"{folder.path} holds no records yet: go on with `ssd bench run`")
        self._forwards = folder.forwards()
        self._facts = {each.label: each for each in self.manifest.cases}

    @property
    def datasets(self) -> list[str]:
        """Those that have records; several of them are also taken together."""
        named = [name for name in self.manifest.settings.datasets if self._of(name)]
        return [*named, ALL] if len(named) > 1 else named

    @property
    def cases(self) -> list[Case]:
        measured = {record.case for record in self.records}
        return [parse_case(label) for label in self.manifest.settings.cases if label in measured]

    def name_of(self, case: Case) -> str:
        """Short where the run has one temperature and one batch size."""
        return case.name if len(self.slices) == 1 else case.label

    @property
    def slices(self) -> list[tuple[float, int]]:
        """Temperatures and batch sizes: within one of them cases compare."""
        return list(dict.fromkeys((case.temperature, case.batch_size) for case in self.cases))

    @cached_property
    def equality(self) -> Equality:
        return check_equality(self.records)

    @cached_property
    def rows(self) -> list[Figures]:
        return [
            self._figures(dataset, case)
            for dataset in self.datasets
            for case in self.cases
            if self._of(dataset, case)
        ]

    def _of(self, dataset: str, case: Case | None = None) -> list[CaseRecord]:
        return [
            record
            for record in self.records
            if dataset in (ALL, record.dataset) and (case is None or record.case == case.label)
        ]

    def _figures(self, dataset: str, case: Case) -> Figures:
        records = self._of(dataset, case)
        num_tokens, seconds = sum(len(each.tokens) for each in records), sum(each.seconds for each in records)
        facts = self._facts[case.label]
        steps = sum(each.step_seconds for each in records)
        joules = [each.joules for each in records if each.joules is not None]
        in_turns = sum(each.draft_seconds for each in records) if case.mode == "sd" else 0.0
        return Figures(
            dataset=dataset,
            case=case,
            rate=median_with_interval([each.rate for each in records]),
            output_rate=num_tokens / seconds,
            milliseconds_per_token=median_with_interval([1e3 * each.seconds_per_token for each in records]),
            first_token=median_with_interval([each.first_token for each in records]),
            accepted_per_round=sum(each.accepted for each in records) / sum(each.rounds for each in records),
            hit_rate=_hit_rate(records),
            depths=_depths(records, facts.lookahead),
            shares=Shares(
                verifying=sum(each.verify_seconds for each in records) / steps,
                drafting=in_turns / steps,
                waiting=sum(each.wait_seconds for each in records) / steps,
            ),
            rate_per_device=num_tokens / seconds / facts.num_devices,
            tokens_per_gflop=num_tokens / self._gflops(records, facts),
            joules_per_token=sum(joules) / num_tokens if len(joules) == len(records) else None,
            over_ar=self._over(records, dataset, self._plain(case)),
            over_sd=self._over(records, dataset, self._best_sd(dataset, case))
            if case.mode == "ssd"
            else None,
            roof=self._roof(dataset, case, facts),
        )

    def _gflops(self, records: Sequence[CaseRecord], facts: CaseFacts) -> float:
        target = 0 if self.manifest.target is None else self.manifest.target.num_parameters
        return sum(
            2e-9 * (target * each.target_rows + facts.draft_parameters * each.draft_rows) for each in records
        )

    def _alike(self, case: Case, mode: str) -> list[Case]:
        """Cases of a mode at the same temperature and batch size."""
        return [
            each
            for each in self.cases
            if (each.mode, each.temperature, each.batch_size) == (mode, case.temperature, case.batch_size)
        ]

    def _plain(self, case: Case) -> Case | None:
        alike = self._alike(case, "ar")
        return next((each for each in alike if each.name == "ar"), alike[0] if alike else None)

    def _best_sd(self, dataset: str, case: Case) -> Case | None:
        found = {each: self._of(dataset, each) for each in self._alike(case, "sd")}
        rates = {
            each: median(record.rate for record in records) for each, records in found.items() if records
        }
        return max(rates, key=rates.__getitem__) if rates else None

    def _over(self, records: Sequence[CaseRecord], dataset: str, other: Case | None) -> Estimate | None:
        if other is None or records[0].case == other.label:
            return None
        others = {(each.dataset, each.prompt): each for each in self._of(dataset, other)}
        pairs = [(each, others[key]) for each in records if (key := (each.dataset, each.prompt)) in others]
        if not pairs:
            return None
        return paired_ratio([ours.rate for ours, _ in pairs], [theirs.rate for _, theirs in pairs])

    def _roof(self, dataset: str, case: Case, facts: CaseFacts) -> Roof | None:
        """Only where it was measured for: one greedy text at a time."""
        form = facts.draft_form
        if case.mode != "ssd" or form is None or (case.temperature, case.batch_size) != (0, 1):
            return None
        forwards = [each for each in self._forwards if dataset in (ALL, each.dataset)]
        agreeing = [each.agreement[form] for each in forwards if form in each.agreement]
        if not agreeing:
            return None
        rows, width = facts.lookahead + 1, facts.draft_width
        return Roof(
            tokens_a_round=sum(tokens_a_round(each, facts.lookahead) for each in agreeing) / len(agreeing),
            verify_seconds=median(each.target_seconds[rows] for each in forwards),
            verify_rows=rows,
            draft_seconds=median(each.draft_seconds[form][width] for each in forwards),
            draft_rows=width,
        )


def _hit_rate(records: Sequence[CaseRecord]) -> float | None:
    hits = sum(each.hits for each in records)
    foreseeable = hits + sum(each.late + each.unknown + each.unheard for each in records)
    return hits / foreseeable if foreseeable else None


def _depths(records: Sequence[CaseRecord], lookahead: int) -> list[float]:
    rounds = sum(sum(each.depths) for each in records)
    return [sum(sum(each.depths[depth:]) for each in records) / rounds for depth in range(1, lookahead + 1)]
