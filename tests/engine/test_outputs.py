"""What is counted of a round: its cause, and which backup served a miss; when the first token came."""

import pytest

from ssd.draft.client.speculator import Round
from ssd.engine.outputs import SpeculationStats
from ssd.engine.request import RunningRequest
from tests.engine.test_stopping import generation


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


def test_later_tokens_do_not_move_the_first() -> None:
    only = generation(max_tokens=8)
    running, arrival = RunningRequest(only.request, [only]), only.request.arrival
    for seconds in (1.0, 2.0, 5.0):
        running.note_token(arrival + seconds)
    timings = running.output(arrival + 6.0).timings
    assert (timings.first_token, timings.total) == pytest.approx((1.0, 6.0))
