"""Which kind of draft a text is with: what it has shown there, or else what it promises."""

import argparse
import random

import pytest

from benchmarks.regret import SCENES, run_text, simulate
from ssd.draft.fitness import TRIAL, Fitness, Taste

KINDS = ("chat", "code")
OPTIONS = argparse.Namespace(texts=200, rounds=100, lookahead=8, reading=2, seed=0)


def rounds(fitness: Fitness, taste: Taste, kind: str, *accepted: int) -> None:
    for count in accepted:
        fitness.note(taste, kind, count)


def text(fitness: Fitness, beginning: int, **worth: int) -> None:
    """One that was with each of these kinds, and had so many tokens a round of it."""
    taste = fitness.begin([beginning], KINDS)
    for kind, count in worth.items():
        rounds(fitness, taste, kind, *[count] * TRIAL)
    fitness.end(taste)


def test_who_is_right_seldom_is_left_for_one_of_whom_nothing_is_known() -> None:
    fitness = Fitness()
    taste = fitness.begin([1], KINDS)
    first = fitness.best(KINDS, taste)
    [other] = {*KINDS} - {first}
    rounds(fitness, taste, first, *[0] * (TRIAL - 1))
    assert not fitness.is_better_elsewhere(taste, first, [other]), "it had no time to show anything"
    rounds(fitness, taste, first, 0)
    assert fitness.is_better_elsewhere(taste, first, [other])
    assert fitness.best(KINDS, taste) == other


def test_what_was_of_no_use_to_others_is_not_tried_again() -> None:
    fitness = Fitness()
    for _ in range(4):
        text(fitness, 1, chat=0, code=3)
    taste = fitness.begin([2], KINDS)
    assert fitness.best(KINDS, taste) == "code"
    rounds(fitness, taste, "code", *[2] * TRIAL)
    assert not fitness.is_better_elsewhere(taste, "code", ["chat"])


def test_texts_that_begin_alike_are_with_the_same_kind() -> None:
    fitness = Fitness()
    for _ in range(7):
        text(fitness, 1, chat=1, code=5)
        text(fitness, 2, chat=5, code=1)
    assert fitness.best(KINDS, fitness.begin([1], KINDS)) == "code"
    assert fitness.best(KINDS, fitness.begin([2], KINDS)) == "chat"


def test_what_a_text_shows_counts_more_than_how_it_begins() -> None:
    fitness = Fitness()
    for _ in range(4):
        text(fitness, 1, chat=1, code=5)
    taste = fitness.begin([1], KINDS)
    rounds(fitness, taste, "code", *[0] * TRIAL)
    assert fitness.is_better_elsewhere(taste, "code", ["chat"])


def test_patience_grows_so_that_two_alike_are_not_played_off_against_each_other() -> None:
    fitness = Fitness()
    taste = fitness.begin([1], KINDS)
    num_moves, kind, chance = 0, "chat", random.Random(0)
    for _ in range(1000):
        rounds(fitness, taste, kind, chance.choice([0, 0, 0, 8]))
        [other] = {*KINDS} - {kind}
        if fitness.is_better_elsewhere(taste, kind, [other]):
            fitness.note_came(taste, other)
            num_moves, kind = num_moves + 1, other
    assert num_moves <= 7


def test_one_text_in_some_tries_what_promises_least() -> None:
    fitness = Fitness()
    firsts = list[str]()
    for _ in range(33):
        taste = fitness.begin([1], KINDS)
        firsts.append(fitness.best(KINDS, taste))
        for kind, count in (("chat", 0), ("code", 3)):
            # Who scouts has seen both; the others go where it is best.
            if kind == firsts[-1] or len(firsts) < 3:
                rounds(fitness, taste, kind, *[count] * TRIAL)
        fitness.end(taste)
    assert firsts[3:].count("chat") == 2


def test_beginnings_that_nobody_comes_with_any_more_are_forgotten() -> None:
    fitness = Fitness()
    for beginning in range(3000):
        text(fitness, beginning, code=1)
    assert len(fitness._by_beginning) == 1024
    assert fitness.begin([2999], KINDS).beginning in fitness._by_beginning


@pytest.mark.parametrize(
    ("scene", "regret", "found"),
    [("useless", 0.02, 0.95), ("apart", 0.08, 0.9), ("told apart", 0.02, 0.95), ("rare", 0.06, 0.9)],
)
def test_little_is_lost_against_who_knows_the_best_beforehand(
    scene: str, regret: float, found: float
) -> None:
    seen = simulate(SCENES[scene], OPTIONS)
    assert seen.regret < regret
    assert seen.found > found


def test_a_text_alone_finds_the_one_that_is_of_use_within_twenty_rounds() -> None:
    """Nothing is known of either."""
    for seed in range(50):
        homes = run_text(Fitness(), {"random": 0.0, "good": 0.7}, [1], OPTIONS, random.Random(seed))
        assert homes[20] == "good"
