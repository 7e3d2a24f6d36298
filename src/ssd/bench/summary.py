"""Computes a run's figures from its records: a row for each data set and case.

Knows records and the manifest. Does not know how figures are shown.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from statistics import median

from ssd.bench.cases import Case, parse_case
from ssd.bench.equality import Equality, check_equality
from ssd.bench.figures import ALL, Figures, Roof, TimeShares
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import CaseFacts, Manifest
from ssd.bench.records import CaseRecord, Forwards, Key, Unit, units
from ssd.bench.roof import roof_of
from ssd.bench.statistics import Estimate, joint_confidence, median_with_interval, paired_ratio


class RunFigures:
    def __init__(self, folder: RunFolder) -> None:
        self.manifest: Manifest = folder.manifest()
        self.records = folder.records()
        if not self.records:
            raise ValueError(f"{folder.path} holds no records yet: continue with `ssd bench run`")
        self._forwards, self._ties = folder.forwards(), folder.ties()
        self._facts = {each.label: each for each in self.manifest.cases}

    @property
    def datasets(self) -> list[str]:
        """Data sets that have records, and ALL if there are several."""
        named = [name for name in self.manifest.settings.datasets if self._of(name)]
        return [*named, ALL] if len(named) > 1 else named

    @property
    def cases(self) -> list[Case]:
        measured = {record.case for record in self.records}
        return [parse_case(label) for label in self.manifest.settings.cases if label in measured]

    def name_of(self, case: Case) -> str:
        """The short name if the run has one temperature and one batch size, else the label."""
        return case.name if len(self.slices) == 1 else case.label

    @property
    def slices(self) -> list[tuple[float, int]]:
        """Pairs of temperature and batch size: cases of the same pair can be compared."""
        return list(dict.fromkeys((case.temperature, case.batch_size) for case in self.cases))

    @cached_property
    def equality(self) -> Equality:
        return check_equality(self.records, self._ties)

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

    def _units(self, dataset: str, case: Case) -> Mapping[Key, Unit]:
        first = self.manifest.settings.first_prompt
        return units(self._of(dataset, case), batch_size=case.batch_size, first_prompt=first)

    def _figures(self, dataset: str, case: Case) -> Figures:
        records, observed = self._of(dataset, case), list(self._units(dataset, case).values())
        num_tokens, seconds = sum(len(each.tokens) for each in records), _total(records, "seconds")
        facts = self._facts[case.label]
        steps, draft_steps = _total(records, "step_seconds"), _total(records, "draft_steps")
        in_turns = _total(records, "draft_seconds") if case.mode == "sd" else 0.0
        return Figures(
            dataset=dataset,
            case=case,
            num_prompts=len(records),
            rate=median_with_interval([each.rate for each in observed]),
            output_rate=num_tokens / seconds,
            milliseconds_per_token=median_with_interval([1e3 * each.seconds_per_token for each in observed]),
            first_token=median_with_interval([each.first_token for each in observed]),
            accepted_per_round=_total(records, "accepted") / _total(records, "rounds"),
            hit_rate=_share_of_rounds(records, "hits"),
            late_rate=_share_of_rounds(records, "late"),
            unknown_rate=_share_of_rounds(records, "unknown"),
            shares=TimeShares(
                verifying=_total(records, "verify_seconds") / steps,
                drafting=in_turns / steps,
                waiting=_total(records, "wait_seconds") / steps,
            ),
            rate_per_device=num_tokens / seconds / facts.num_devices,
            tokens_per_gflop=num_tokens / self._gflops(records, facts),
            over_ar=self._over(case, dataset, self._plain(case)),
            over_wide_ar=self._over(case, dataset, self._plain_on_all_cores(case)),
            over_sd=self._over_best_sd(case, dataset) if case.mode == "ssd" else None,
            roof=self._roof(dataset, case, facts),
            differing=sum(
                dataset in (ALL, each.dataset) and each.case == case.label
                for each in self.equality.differences
            ),
            verify_milliseconds=1e3
            * _total(records, "round_seconds")
            / max(1, _total(records, "round_steps")),
            draft_milliseconds=1e3 * _total(records, "draft_seconds") / draft_steps if draft_steps else None,
            tokens_per_draft_step=num_tokens / draft_steps if draft_steps else None,
        )

    def _gflops(self, records: Sequence[CaseRecord], facts: CaseFacts) -> float:
        target = 0 if self.manifest.target is None else self.manifest.target.num_parameters
        return sum(
            2e-9 * (target * each.target_rows + facts.draft_parameters * each.draft_rows) for each in records
        )

    def over(self, case: Case, other: Case) -> Estimate | None:
        """The ratio of speeds on all prompts; None if the two have no prompt in common."""
        return self._over(case, self.datasets[-1], other)

    def confidence(self, case: Case) -> float:
        """The confidence of a ratio, so that those of all pairs of cases of its slice hold together."""
        count = sum(
            (each.temperature, each.batch_size) == (case.temperature, case.batch_size) for each in self.cases
        )
        return joint_confidence(count * (count - 1) // 2)

    @property
    def other_load(self) -> float | None:
        """The share of the cores' time that other programs took; None if it is not known for every text."""
        known = [(each.other_load, each.seconds) for each in self.records if each.other_load is not None]
        if len(known) < len(self.records):
            return None
        return sum(load * seconds for load, seconds in known) / sum(seconds for _, seconds in known)

    @property
    def forwards(self) -> Sequence[Forwards]:
        return self._forwards

    def _alike(self, case: Case, mode: str) -> list[Case]:
        """Cases of a mode at the same temperature and batch size."""
        return [
            each
            for each in self.cases
            if (each.mode, each.temperature, each.batch_size) == (mode, case.temperature, case.batch_size)
        ]

    def _plain(self, case: Case) -> Case | None:
        alike = self._alike(case, "ar")
        return next((each for each in alike if not each.all_cores), alike[0] if alike else None)

    def _plain_on_all_cores(self, case: Case) -> Case | None:
        return next((each for each in self._alike(case, "ar") if each.all_cores), None)

    def _over_best_sd(self, case: Case, dataset: str) -> Estimate | None:
        """The ratio over the fastest `sd` case. Of several, it is chosen by every other prompt and compared
        on the rest: on the prompts that it was chosen by, it would look better than it is."""
        rates = {each: units for each in self._alike(case, "sd") if (units := self._units(dataset, each))}
        if len(rates) < 2:
            return self._over(case, dataset, next(iter(rates), None))
        keys = sorted(set.intersection(*(set(each) for each in rates.values())))
        if not keys:
            return None
        best = max(rates, key=lambda each: median(rates[each][key].rate for key in keys[::2]))
        return self._over(case, dataset, best, set(keys[1::2]))

    def _over(
        self, case: Case, dataset: str, other: Case | None, among: Collection[Key] | None = None
    ) -> Estimate | None:
        """`among`: compares these prompts only."""
        if other is None or case == other:
            return None
        ours, theirs = self._units(dataset, case), self._units(dataset, other)
        keys = [key for key in sorted(ours.keys() & theirs.keys()) if among is None or key in among]
        if not keys:
            return None
        rates = [ours[key].rate for key in keys], [theirs[key].rate for key in keys]
        return paired_ratio(*rates, confidence=self.confidence(case))

    def _roof(self, dataset: str, case: Case, facts: CaseFacts) -> Roof | None:
        """Only for cases with one greedy text at a time, which the bare forwards are measured for."""
        if case.mode != "ssd" or (case.temperature, case.batch_size) != (0, 1):
            return None
        return roof_of([each for each in self._forwards if dataset in (ALL, each.dataset)], facts)


def _total(records: Sequence[CaseRecord], name: str) -> float:
    return float(sum(getattr(each, name) for each in records))


def _share_of_rounds(records: Sequence[CaseRecord], name: str) -> float | None:
    """Share of the rounds that a draft could have foreseen; None if there are none."""
    foreseeable = sum(_total(records, each) for each in ("hits", "late", "unknown", "unheard"))
    return _total(records, name) / foreseeable if foreseeable else None
