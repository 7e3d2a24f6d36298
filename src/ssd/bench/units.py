"""What counts as one observation: a prompt that ran alone, or all prompts of a batch that ran together.

Texts of one batch share its forwards and so its luck: taken one by one they would make intervals too narrow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean

from ssd.bench.records import CaseRecord

Key = tuple[str, int]
"""Data set and first prompt."""


@dataclass(frozen=True, slots=True)
class Unit:
    seconds_per_token: float
    first_token: float

    @property
    def rate(self) -> float:
        return 1 / self.seconds_per_token


def units(records: Iterable[CaseRecord], *, batch_size: int, first_prompt: int) -> Mapping[Key, Unit]:
    """Of one case. Of a batch: means over its texts."""
    together: dict[Key, list[CaseRecord]] = {}
    for each in records:
        start = first_prompt + (each.prompt - first_prompt) // batch_size * batch_size
        together.setdefault((each.dataset, start), []).append(each)
    return {
        key: Unit(
            mean(each.seconds_per_token for each in members), mean(each.first_token for each in members)
        )
        for key, members in together.items()
    }
