"""Checks that all cases produced the same tokens for a prompt at equal temperature and seed.

Knows records and the ties that a run measured. With deterministic settings a difference is a fault. Otherwise
rounding may decide between two tokens with nearly equal scores, and rounding depends on the other rows of a
forward (docs/determinism.md): such differences are counted, with the gap of each.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ssd.bench.cases import parse_case
from ssd.bench.records import CaseRecord, Tie

WIDEST_TIE = 1.0
"""Largest gap in logits that rounding may explain: up to 0.4 in 306 measured cases (docs/determinism.md)."""


@dataclass(frozen=True, slots=True)
class Difference:
    dataset: str
    prompt: int
    case: str
    reference: str
    place: int
    """Index of the first token that differs."""
    gap: float | None = None
    """Difference of the two tokens' scores, in logits; None: not measured."""

    def __str__(self) -> str:
        apart = "" if self.gap is None else f", where the two tokens are {self.gap:.2g} logits apart"
        return (
            f"{self.dataset} prompt {self.prompt}: {self.case} leaves {self.reference} at token {self.place}"
            f"{apart}"
        )


@dataclass(frozen=True, slots=True)
class Equality:
    num_compared: int
    """Number of texts that were compared."""
    differences: Sequence[Difference]
    reference: str = "plain decoding"
    """The case that the others are compared with."""

    def in_words(self, *, deterministic: bool) -> str:
        count = len(self.differences)
        if not self.num_compared:
            return "Every prompt was written in one mode only: there was nothing to compare."
        if not count:
            return f"All {self.num_compared} texts equal those of {self.reference}, token for token."
        finding = f"{count} of {self.num_compared} texts differ from those of {self.reference}"
        if deterministic:
            return f"OUTPUTS DIFFER: {finding}, though the run is deterministic. This is a fault."
        return f"{finding}. {self._about_ties()}"

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
    """Compares each text with that of plain decoding, or of the first case if there is none."""
    groups = defaultdict[tuple[str, int, float], list[CaseRecord]](list)
    for record in records:
        case = parse_case(record.case)
        groups[record.dataset, record.prompt, case.temperature].append(record)
    differences, num_compared = list[Difference](), 0
    has_plain = any(_is_plain(each) for group in groups.values() for each in group)
    for group in groups.values():
        reference = min(group, key=lambda each: (not _is_plain(each), each.case))
        others = [each for each in group if each is not reference]
        num_compared += len(others)
        differences += [_difference(each, reference) for each in others if each.tokens != reference.tokens]
    return Equality(
        num_compared, _with_gaps(differences, ties), "plain decoding" if has_plain else "the first case"
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
