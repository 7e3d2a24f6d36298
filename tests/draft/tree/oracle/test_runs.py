"""Runs: tokens guessed from the text and computed in the step of the node they are to follow."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ssd.draft.protocol.messages import Sampling
from ssd.ngram import ngram_guess
from ssd.runtime.loading import LoadedModel
from tests.draft.tree.oracle.test_grower import (
    LIMITS,
    SAMPLINGS,
    VOCAB,
    Bench,
    Reference,
    load,
    path_to,
    some_outcome,
    words,
)
from tests.tiny import write_checkpoint

LOOKUP = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("llama3", tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def draft(folder: Path) -> LoadedModel:
    return load(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture
def bench(draft: LoadedModel, reference: Reference) -> Iterator[Bench]:
    bench = Bench(draft, reference, replace(LIMITS, lookup=LOOKUP))
    yield bench
    bench.close()


class Oracle:
    """In place of the text: often what the model itself says next, sometimes not."""

    def __init__(self, reference: Reference, rng: random.Random, truth: float) -> None:
        self._reference, self._rng, self._truth = reference, rng, truth

    def __call__(self, prompt: Sequence[int], output: Sequence[int], count: int) -> tuple[int, ...]:
        text = [*prompt, *output]
        for _ in range(count):
            told = int(self._reference.logits([text])[0].argmax())
            text.append(told if self._rng.random() < self._truth else self._rng.randrange(2, VOCAB))
        return tuple(text[len(text) - count :]) if count else ()


def deepest(bench: Bench, session_id: int) -> int:
    return int(bench.sessions[session_id].tree.relative_depths().max())


@pytest.mark.parametrize(("seed", "scattered"), [(0, False), (1, True)])
def test_children_equal_a_forward_from_scratch_with_runs_right_and_wrong(
    bench: Bench, reference: Reference, monkeypatch: pytest.MonkeyPatch, seed: int, scattered: bool
) -> None:
    rng = random.Random(seed)
    if scattered:
        bench.scatter()
    monkeypatch.setattr("tests.draft.tree.oracle.session.ngram_guess", Oracle(reference, rng, truth=0.8))
    prompt = words(rng, 21)
    bench.open(0, prompt, SAMPLINGS["greedy"])
    bench.open(1, [*prompt, *words(rng, 2)], SAMPLINGS["sampled"])
    bench.open(2, words(rng, 3), SAMPLINGS["edited"])
    gains = set[int]()
    for _ in range(30):
        for _ in range(rng.choice([0, 1, 1, 2])):
            before = {each: deepest(bench, each) for each in bench.sessions}
            bench.step()
            gains |= {deepest(bench, each) - depth for each, depth in before.items()}
        session_id = rng.choice(list(bench.sessions))
        session = bench.sessions[session_id]
        if len(session.tokens) <= (80 if scattered else 150):
            bench.outcome(session_id, some_outcome(rng, session))
    assert bench.num_compared > 100
    assert {0, 1} < gains, "runs were never confirmed"
    assert max(gains) <= 1 + LOOKUP


def test_a_run_that_is_right_makes_the_tree_deeper_by_its_length_in_one_step(
    bench: Bench, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.draft.tree.oracle.session.ngram_guess", Oracle(reference, random.Random(0), truth=1.0)
    )
    session = bench.open(0, words(random.Random(1), 9))
    bench.step()
    assert deepest(bench, 0) == 1 + LOOKUP  # the root's children, and a level for each token of the run
    assert session.num_grown == LOOKUP
    bench.step()
    assert deepest(bench, 0) >= 2 + LOOKUP
    # Whatever was computed ahead is the text's, once it is decided: nothing is read anew.
    path = session.tree.best_path(4)
    bench.outcome(0, path_to(session, path[-1]))
    assert session.is_root_read


def test_a_run_that_is_wrong_leaves_nothing_behind(
    bench: Bench, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.draft.tree.oracle.session.ngram_guess", lambda *_: (VOCAB - 1,) * LOOKUP)
    session = bench.open(0, words(random.Random(1), 9))
    bench.step()
    assert (session.num_grown, deepest(bench, 0)) == (0, 1)
    bench.step()
    assert session.num_grown == LIMITS.num_children


def test_runs_share_their_budget_and_keep_within_the_room(
    draft: LoadedModel, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.draft.tree.oracle.session.ngram_guess", Oracle(reference, random.Random(0), truth=1.0)
    )
    bench = Bench(draft, reference, replace(LIMITS, lookup=LOOKUP, max_grown=4))
    for session_id in range(2):
        bench.open(session_id, words(random.Random(session_id), 5 + session_id))
    _frames, num_rows = bench.step()
    assert num_rows == 5 + 6 + LOOKUP
    for _ in range(4):
        bench.step()
        assert all(session.num_grown <= 4 for session in bench.sessions.values())
    bench.close()


def test_roots_have_the_budget_before_nodes_and_likely_nodes_before_others(
    bench: Bench, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle, asked = Oracle(reference, random.Random(0), truth=1.0), list[list[int]]()

    def guess(text: Sequence[int], path: Sequence[int], count: int) -> tuple[int, ...]:
        asked.append(list(text))
        return oracle(text, path, count)

    first, second = (bench.open(each, words(random.Random(each), 7)) for each in range(2))
    bench.step()
    monkeypatch.setattr("tests.draft.tree.oracle.session.ngram_guess", guess)
    read = bench.open(2, words(random.Random(2), 5))
    bench.step()
    assert asked == [read.tokens]
    asked.clear()
    bench.grower.close(2)
    del bench.sessions[2]
    best = {id(each): each.tree.relative_values()[each.growable()].max() for each in (first, second)}
    likelier = max((first, second), key=lambda each: best[id(each)])
    assert len(set(best.values())) == 2
    bench.step()
    assert asked[0] == likelier.tokens


def test_runs_come_from_the_text_and_the_path_to_the_node(bench: Bench) -> None:
    text = [*words(random.Random(3), 12), 40, 41, 42, 43, 44, 45, 50, 40, 41, 42]
    session = bench.open(0, text)
    assert session.run_after(session.tree.root, 3) == [43, 44, 45]
    assert ngram_guess(text, [43], 2) == (44, 45)
    bench.step()
    bench.step()
    session.tree.tokens[1] = 43
    assert session.run_after(1, 2) == [44, 45]
    assert session.run_after(1, 0) == []


def test_where_guesses_are_drawn_there_are_no_runs(
    bench: Bench, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a frame takes would depend on the tokens in it, and so whether they are proposed."""
    monkeypatch.setattr(
        "tests.draft.tree.oracle.session.ngram_guess", Oracle(reference, random.Random(0), truth=1.0)
    )
    opening = Sampling(seed=2, temperature=0.9, ratio=True)
    bench.open(0, words(random.Random(1), 9), opening)
    _frames, num_rows = bench.grower.step()
    assert num_rows == 9
    assert deepest(bench, 0) == 1
