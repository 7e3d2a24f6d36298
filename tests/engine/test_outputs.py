"""What is counted of a round: its cause, and which backup served a miss."""

import pytest

from ssd.draft.policy import Round
from ssd.engine.outputs import SpeculationStats


@pytest.mark.parametrize(
    ("cause", "source", "counted"),
    [
        ("hit", "draft", {"hits"}),
        ("late", "draft", {"late", "jit"}),
        ("unknown", "draft", {"unknown", "jit"}),
        ("unknown", "ngram", {"unknown", "ngram"}),
        ("unheard", "none", {"unheard"}),
        ("first", "none", set()),
    ],
)
def test_a_round_is_counted_by_cause_and_backup(cause: str, source: str, counted: set[str]) -> None:
    stats = SpeculationStats()
    stats.note(drafted=0, accepted=0, how=Round(cause=cause, source=source))
    names = ("hits", "late", "unknown", "unheard", "ngram", "jit")
    assert {name for name in names if getattr(stats, name)} == counted
