"""How many steps a round still has, and what a tree makes of them: depth, where it would be broad at once."""

import pytest
import torch

from benchmarks.ruled import scheduler_of, shape_of
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.session import DraftSession, RoundTimer
from ssd.draft.tree.tables import Moves, Tables, TreeRows


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def rounds_of(seconds: float, step: float, count: int = 20) -> tuple[RoundTimer, Clock]:
    clock = Clock()
    rounds = RoundTimer(2, clock)
    rounds.enter(1)
    rounds.note_step(step)
    for _ in range(count + 1):
        clock.now += seconds
        rounds.note_outcome(1)
    return rounds, clock


def test_before_anything_is_known_all_room_is_for_the_next_step() -> None:
    rounds, clock = rounds_of(1.0, 0.125, count=0)
    assert rounds.steps_left().tolist() == [1, 1, 1]
    clock.now += 1.0
    rounds.note_outcome(1)
    assert rounds.steps_left()[1] == 8


def test_steps_that_are_left_become_fewer() -> None:
    rounds, clock = rounds_of(1.0, 0.125)
    found = []
    for _ in range(10):
        found.append(int(rounds.steps_left()[1]))
        clock.now += 0.125
    assert found == [8, 7, 6, 5, 4, 3, 2, 1, 1, 1]


def test_a_new_sequence_is_taken_to_be_as_others_are() -> None:
    rounds, clock = rounds_of(1.0, 0.125)
    clock.now += 0.5
    rounds.enter(2)
    assert rounds.steps_left().tolist() == [1, 4, 8]


def test_the_time_of_a_prompt_is_no_round() -> None:
    rounds, clock = rounds_of(1.0, 0.125)
    rounds.enter(2)
    clock.now += 7.0
    rounds.note_outcome(2)
    assert rounds.steps_left()[2] == 8


def test_what_is_told_ahead_is_no_round() -> None:
    rounds, clock = rounds_of(1.0, 0.125)
    for _ in range(8):
        clock.now += 0.01
        rounds.note_outcome(1)
        clock.now += 0.99
        rounds.note_outcome(1)
    assert rounds.steps_left()[1] == 8


def test_a_pause_is_no_round() -> None:
    rounds, clock = rounds_of(1.0, 0.125)
    clock.now += 60.0
    rounds.note_outcome(1)
    assert rounds.steps_left()[1] == 8


def test_a_draft_that_takes_a_whole_round_for_a_step_has_one() -> None:
    rounds, _clock = rounds_of(1.0, 1.5)
    assert rounds.steps_left()[1] == 1


class SecondsAForward:
    """A model that finds one token as likely as another, and takes a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def forward(self, rows: TreeRows, tables: Tables, chunks: object) -> torch.Tensor:
        self._clock.now += 1.0
        return torch.arange(4.0).repeat(int(rows.attaches.sum()), 1) / 8

    def move(self, moves: Moves) -> None:
        pass


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.0, 2, 4), (16.0, 6, 17)])
def test_a_tree_is_deeper_where_a_round_has_more_steps(seconds: float, least: int, most: int) -> None:
    """With room for 40 nodes and 64 rows a step; with rounds of no known length it is full at once."""
    clock = Clock()
    scheduler = scheduler_of(
        SecondsAForward(clock), prefill_chunk=64, shape=shape_of(1, 8, width=64, slots=40), clock=clock
    )
    opening = Open(0, 1, pack_ints([1, 2, 3]), 3, 200, 8, Sampling(seed=0))
    scheduler.open(DraftSession(opening, 200, 4))
    if seconds:
        scheduler._round_timer._seconds[1] = seconds
        scheduler._round_timer.note_step(1.0)
    for _ in range(16):
        scheduler.grow()
    tables = scheduler._steps.forest.tables
    used = tables.is_used[1, :40]
    assert used.sum() == 40, "all room is taken in the end"
    depth = int((tables.position[1, :40][used] - tables.length[1] + 1).max())
    assert least <= depth <= most
