"""How far ahead a draft is to work: further, the longer its words are under way."""

import numpy as np
import pytest

from ssd.draft.client.replica import Replica
from ssd.draft.client.router import LookaheadEstimator
from ssd.draft.protocol.messages import NodesHeads
from tests.draft.client.test_reconnect import Source


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def rounds_of(seconds: float, lookahead: int = 8) -> LookaheadEstimator:
    clock = Clock()
    estimator = LookaheadEstimator(lookahead, clock)
    for _ in range(20):
        clock.now += seconds
        estimator.note_round()
    return estimator


def test_before_anything_was_measured_it_is_the_lookahead() -> None:
    assert LookaheadEstimator(8, Clock()).lookahead_with(5.0) == 8


@pytest.mark.parametrize(
    ("answer", "told"), [(0.001, 8), (0.0199, 8), (0.0399, 13), (0.0599, 17), (0.0999, 26), (9.0, 32)]
)
def test_an_answer_of_more_than_a_round_asks_for_deeper_trees(answer: float, told: int) -> None:
    assert rounds_of(0.020).lookahead_with(answer) == told


def test_depth_covers_the_rounds_that_end_meanwhile() -> None:
    """A tree of depth 2K + 1 is deep enough for one round behind; each further round takes K + 1 more."""
    estimator = rounds_of(0.020, lookahead=4)
    for num_behind in (1, 2, 3, 4):
        depth = 2 * estimator.lookahead_with(num_behind * 0.020) + 1
        assert depth >= num_behind * 5 + 4


def test_a_pause_is_no_round() -> None:
    clock = Clock()
    estimator = LookaheadEstimator(8, clock)
    for seconds in (0.02, 0.02, 30.0, 0.02):
        clock.now += seconds
        estimator.note_round()
    assert estimator.lookahead_with(0.0399) == 13


def heads(seq: int, n: int) -> NodesHeads:
    columns = [np.array([value]) for value in (seq, 1, 0, n, 0, 3, 0, 0)]
    return NodesHeads(*columns)


def test_an_answer_is_the_first_word_that_knows_of_the_outcome() -> None:
    clock = Clock()
    replica = Replica(Source(), clock)
    replica.note_outcome_sent(5, 3)
    clock.now += 0.01
    for other in (heads(4, 9), heads(5, 2)):
        replica.note_nodes(other)
    assert replica.answer.value == 0.0
    clock.now += 0.02
    replica.note_nodes(heads(5, 4))
    assert replica.answer.value == pytest.approx(0.03)


def test_what_is_never_answered_is_asked_anew() -> None:
    clock = Clock()
    replica = Replica(Source(), clock)
    replica.note_outcome_sent(5, 3)
    clock.now += 2.0
    replica.note_outcome_sent(6, 1)
    clock.now += 0.01
    replica.note_nodes(heads(5, 3))
    assert replica.answer.value == 0.0
    replica.note_nodes(heads(6, 1))
    assert replica.answer.value == pytest.approx(0.01)
