"""Compares two runs of the same prompts: what became faster or slower, given the noise.

Ratios are taken within a prompt. But the machine's speed may differ between runs. So each rate is also
divided by the speed of its run's bare forwards: a case is called faster only if both ratios are. If only the
bare forwards changed (machine or kernels), the comparison says so. Intervals hold for all rows together,
since some of many rows would differ by chance.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ssd.bench.cases import parse_case
from ssd.bench.figures import ALL
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import Manifest, ModelFacts, RunSettings, differences, places_apart
from ssd.bench.records import Forwards, Key, Unit, units
from ssd.bench.statistics import Estimate, Verdict, joint_confidence, paired_ratio
from ssd.bench.tables import NOTHING, Column

_MAY_DIFFER = ("model", "draft", "cases", "datasets", "prompts", "engine", "deterministic")
"""Settings that are compared in other ways, or only noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCase:
    dataset: str
    case: str
    before: float
    after: float
    """Median tokens a second."""
    ratio: Estimate
    """After over before, prompt by prompt."""
    beside_forwards: Estimate | None
    """The same ratio, with each rate divided by the speed of its run's bare forwards."""

    @property
    def verdict(self) -> Verdict:
        both = {each.verdict for each in (self.ratio, self.beside_forwards) if each is not None}
        return both.pop() if len(both) == 1 else "no difference that the noise allows"

    @property
    def reason(self) -> str:
        """Explains a disagreement of the two ratios; else empty."""
        if self.beside_forwards is None or self.ratio.verdict == self.beside_forwards.verdict:
            return ""
        if self.ratio.verdict in ("faster", "slower"):
            return f"{self.ratio.verdict}, but so were the bare forwards"
        return f"{self.beside_forwards.verdict} beside the bare forwards, which changed the other way"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    together: Sequence[ComparedCase]
    """All data sets taken together; empty if there is only one."""
    rows: Sequence[ComparedCase]
    forwards: Estimate | None
    """Speed of the target's bare forward, after over before."""
    notes: Sequence[str]


def short_name(label: str) -> str:
    """The label without the usual settings: greedy, one text at a time."""
    return label.removesuffix("+t0+b1")


def _in_short(row: ComparedCase) -> str:
    if row.ratio.verdict in ("faster", "slower") and row.reason:
        return "the machine"
    return row.verdict.removesuffix(" that the noise allows").removesuffix(" to tell")


COLUMNS = (
    Column[ComparedCase]("case", lambda row: short_name(row.case), is_text=True),
    Column[ComparedCase]("tok/s, A → B", lambda row: f"{row.before:.2f} → {row.after:.2f}", is_text=True),
    Column[ComparedCase]("B/A", lambda row: str(row.ratio), is_text=True),
    Column[ComparedCase]("beside forwards", lambda row: str(row.beside_forwards or NOTHING), is_text=True),
    Column[ComparedCase]("verdict", _in_short, is_text=True),
)


def compare_runs(before: Path, after: Path) -> Comparison:
    """ValueError with the differences if the runs do not measure the same."""
    old, new = _RunData(RunFolder(before)), _RunData(RunFolder(after))
    _refuse_unlike(old.manifest, new.manifest)
    shared = [name for name in old.manifest.settings.datasets if name in new.manifest.settings.datasets]
    cases = [name for name in old.manifest.settings.cases if name in new.manifest.settings.cases]
    wanted = [*([ALL] if len(shared) > 1 else []), *shared]
    rows = _rows(old, new, wanted, cases)
    if not rows:
        raise ValueError("the two runs share no case and data set with records: nothing can be compared")
    keys = sorted(old.forwards.keys() & new.forwards.keys())
    forwards = None
    if keys:
        forwards = paired_ratio([old.forwards[key] for key in keys], [new.forwards[key] for key in keys])
    return Comparison(
        together=[row for row in rows if row.dataset == ALL],
        rows=[row for row in rows if row.dataset != ALL],
        forwards=forwards,
        notes=_notes(old.manifest, new.manifest),
    )


class _RunData:
    def __init__(self, folder: RunFolder) -> None:
        self.manifest = folder.manifest()
        self.records = folder.records()
        self.forwards = _by_prompt(folder.forwards())
        """Seconds of the target's forward of one row, beside each prompt."""

    def of(self, dataset: str, case: str) -> Mapping[Key, Unit]:
        records = [each for each in self.records if dataset in (ALL, each.dataset) and each.case == case]
        first = self.manifest.settings.first_prompt
        return units(records, batch_size=parse_case(case).batch_size, first_prompt=first)

    def forward_beside(self, key: Key) -> float:
        return self.forwards.get(key) or median(self.forwards.values())


def _by_prompt(forwards: Iterable[Forwards]) -> Mapping[Key, float]:
    return {(each.dataset, each.prompt): each.target_seconds[1] for each in forwards}


def _rows(old: _RunData, new: _RunData, datasets: Sequence[str], cases: Sequence[str]) -> list[ComparedCase]:
    confidence = joint_confidence(len(datasets) * len(cases))
    rows = (_row(old, new, dataset, case, confidence) for dataset in datasets for case in cases)
    return [row for row in rows if row is not None]


def _row(old: _RunData, new: _RunData, dataset: str, case: str, confidence: float) -> ComparedCase | None:
    before, after = old.of(dataset, case), new.of(dataset, case)
    keys = sorted(before.keys() & after.keys())
    if not keys:
        return None
    was, now = [before[key].rate for key in keys], [after[key].rate for key in keys]
    beside = None
    if old.forwards and new.forwards:
        beside = paired_ratio(
            [rate * new.forward_beside(key) for rate, key in zip(now, keys, strict=True)],
            [rate * old.forward_beside(key) for rate, key in zip(was, keys, strict=True)],
            confidence=confidence,
        )
    return ComparedCase(
        dataset=dataset,
        case=case,
        before=median(was),
        after=median(now),
        ratio=paired_ratio(now, was, confidence=confidence),
        beside_forwards=beside,
    )


def _refuse_unlike(old: Manifest, new: Manifest) -> None:
    unlike = differences(new.settings, old.settings, without=_MAY_DIFFER)
    for name, here, there in (("target", new.target, old.target), ("draft", new.draft, old.draft)):
        if _weights(here) != _weights(there):
            unlike.append(f"the {name} is {_weights(there)} there and {_weights(here)} here")
    unlike += [f"the prompts of {name} differ" for name in _other_prompts(old.settings, new.settings)]
    if unlike:
        raise ValueError(f"these runs do not measure the same: {'; '.join(unlike)}")


def _weights(model: ModelFacts | None) -> str:
    return "none" if model is None else f"{model.name} ({model.num_bytes / 1e9:.2f} GB)"


def _other_prompts(old: RunSettings, new: RunSettings) -> list[str]:
    return [name for name in old.prompts if old.prompts[name] != new.prompts.get(name, old.prompts[name])]


def _notes(old: Manifest, new: Manifest) -> list[str]:
    notes = places_apart(old.sessions[-1], new.sessions[-1])
    names = ("engine", "deterministic")
    others = [each for each in _MAY_DIFFER if each not in names]
    kept = [field for field in RunSettings.__dataclass_fields__ if field not in (*names, *others)]
    return notes + differences(new.settings, old.settings, without=(*others, *kept))
