"""Whether modes wrote the same: exact cases share every token of a prompt at equal temperature and seed.

Knows records and the ties that a run measured (ties.py). Under deterministic settings a difference is a
fault. Otherwise rounding decides between two tokens that tie, and rounding differs with the rows that are
computed beside a token (docs/determinism.md): such differences are counted, with the gap of each.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ssd.bench.cases import parse_case
from ssd.bench.records import CaseRecord, Tie

WIDEST_TIE = 1.0
"""In logits. Rounding decided gaps of up to 0.4 in 306 measured cases (docs/determinism.md)."""


@dataclass(frozen=True, slots=True)
class Difference:
    dataset: str
    prompt: int
    case: str
    reference: str
    place: int
    """The first token in which they differ."""
    gap: float | None = None
    """Between the scores of the two tokens there, in logits; None: not measured."""

    def __str__(self) -> str:
        apart = "" if self.gap is None else f", where the two tokens are {self.gap:.2g} logits apart"
        return (
            f"{self.dataset} prompt {self.prompt}: {self.case} leaves {self.reference} at token {self.place}"
            f"{apart}"
        )


@dataclass(frozen=True, slots=True)
class Equality:
    num_compared: int
    """Texts that had another to be compared with."""
    differences: Sequence[Difference]
    reference: str = "plain decoding"
    """Whose texts the others are compared with."""

    def in_words(self, *, deterministic: bool) -> str:
        count = len(self.differences)
        if not self.num_compared:
            return "Every prompt was written in one mode only: there was nothing to compare."
        if not count:
            return f"All {self.num_compared} texts equal those of {self.reference}, token for token."
        said = f"{count} of {self.num_compared} texts differ from those of {self.reference}"
        if deterministic:
            return f"OUTPUTS DIFFER: {said}, though the run is deterministic. This is a fault."
        return f"{said}. {self._about_ties()}"

    def _about_ties(self) -> str:
        remedy = (
            "Rounding decides a tie, and it differs with the rows that are computed beside a token "
            "(docs/determinism.md). With --deterministic all texts are equal."
        )
        gaps = [each.gap for each in self.differences if each.gap is not None]
        if not gaps:
            return f"Without --deterministic, texts may part where two tokens tie. {remedy}"
        wide = [gap for gap in gaps if gap > WIDEST_TIE]
        if wide:
            return (
                f"{len(wide)} of them part where no two tokens tie (up to {max(wide):.2g} logits apart), "
                "which rounding does not explain. Please report this as a fault, with the run's folder."
            )
        return (
            "Each parts from it at a tie: the scores of the two tokens there are "
            f"{median(gaps):.2g} logits apart in the median, {max(gaps):.2g} at most. {remedy}"
        )


def check_equality(records: Iterable[CaseRecord], ties: Iterable[Tie] = ()) -> Equality:
    """Each text against plain decoding's, or, where that is missing, against the first case's."""
    groups = defaultdict[tuple[str, int, float], list[CaseRecord]](list)
    for record in records:
        case = parse_case(record.case)
        if case.is_exact:
            groups[record.dataset, record.prompt, case.temperature].append(record)
    found, num_compared = list[Difference](), 0
    has_plain = any(_is_plain(each) for group in groups.values() for each in group)
    for group in groups.values():
        reference = min(group, key=lambda each: (not _is_plain(each), each.case))
        others = [each for each in group if each is not reference]
        num_compared += len(others)
        found += [_difference(each, reference) for each in others if each.tokens != reference.tokens]
    return Equality(
        num_compared, _with_gaps(found, ties), "plain decoding" if has_plain else "the first case"
    )


def _with_gaps(differences: Sequence[Difference], ties: Iterable[Tie]) -> list[Difference]:
    gaps = {(each.dataset, each.prompt, each.case, each.reference, each.place): each.gap for each in ties}
    return [
        replace(each, gap=gaps.get((each.dataset, each.prompt, each.case, each.reference, each.place)))
        for each in differences
    ]


def _is_plain(record: CaseRecord) -> bool:
    return record.case.startswith("ar+t")


def _difference(record: CaseRecord, reference: CaseRecord) -> Difference:
    pairs = zip(record.tokens, reference.tokens, strict=False)
    shorter = min(len(record.tokens), len(reference.tokens))
    place = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
    return Difference(record.dataset, record.prompt, record.case, reference.case, place)
