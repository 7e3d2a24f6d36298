"""Whether modes wrote the same: exact cases share every token of a prompt at equal temperature and seed.

Knows records. Under deterministic settings a difference is a fault; otherwise near-ties may flip when
other rows are computed beside a token (docs/determinism.md), and differences are only counted.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ssd.bench.cases import parse_case
from ssd.bench.records import CaseRecord


@dataclass(frozen=True, slots=True)
class Difference:
    dataset: str
    prompt: int
    case: str
    reference: str
    place: int
    """The first token in which they differ."""

    def __str__(self) -> str:
        return (
            f"{self.dataset} prompt {self.prompt}: {self.case} leaves {self.reference} at token {self.place}"
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
        return (
            f"{said}: without --deterministic, near-ties may flip when other rows are computed beside a "
            "token (docs/determinism.md)."
        )


def check_equality(records: Iterable[CaseRecord]) -> Equality:
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
    return Equality(num_compared, found, "plain decoding" if has_plain else "the first case")


def _is_plain(record: CaseRecord) -> bool:
    return record.case.startswith("ar+t")


def _difference(record: CaseRecord, reference: CaseRecord) -> Difference:
    pairs = zip(record.tokens, reference.tokens, strict=False)
    shorter = min(len(record.tokens), len(reference.tokens))
    place = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
    return Difference(record.dataset, record.prompt, record.case, reference.case, place)
