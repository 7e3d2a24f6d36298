"""Grown by a real model: children are those of a plain forward over the whole text, whatever came before."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from ssd.draft.protocol.messages import Sampling
from ssd.draft.server.session import DraftSession
from ssd.runtime.loading import LoadedModel
from tests.draft.tree.real import (
    END,
    VOCAB,
    Bench,
    Reference,
    load,
    real_shape,
    some_outcome,
    words,
)
from tests.tiny import write_checkpoint

SAMPLINGS = {
    "greedy": Sampling(seed=1),
    "sampled": Sampling(seed=2, temperature=0.9, top_p=0.95, repetition_penalty=1.2),
    "edited": Sampling(
        seed=3,
        temperature=0.0,
        presence_penalty=1.0,
        logit_bias=[(5, 6.0)],
        bad_word_ids=[[7]],
        min_tokens=9,
        end_ids=[END],
    ),
}


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
def bench(draft: LoadedModel, reference: Reference) -> Bench:
    return Bench(draft, reference)


class Oracle:
    """In place of the text: often what the model itself says next, sometimes not."""

    def __init__(self, reference: Reference, rng: random.Random, truth: float) -> None:
        self._reference, self._rng, self._truth = reference, rng, truth

    def guess(self, session: DraftSession, path: Sequence[int], most: int) -> Sequence[int]:
        text, found = [*session.tokens, *path], list[int]()
        for _ in range(max(0, min(most, session.last_depth - len(path)))):
            told = int(self._reference.logits([[*text, *found]])[0].argmax())
            found.append(told if self._rng.random() < self._truth else self._rng.randrange(2, VOCAB))
        return found


def scatter(bench: Bench) -> None:
    """From here on no two free blocks are neighbours."""
    fillers = range(1000, 1000 + bench.blocks.num_blocks)
    for filler in fillers:
        bench.blocks.allocate(filler, [filler])
    for filler in fillers:
        if bench.blocks.block_table(filler)[0] % 2:
            bench.blocks.free(filler)


@pytest.mark.parametrize(
    ("seed", "truth", "on_tensors"), [(0, None, False), (1, 0.8, False), (2, None, True)]
)
def test_children_equal_a_forward_from_scratch_after_any_outcomes(
    draft: LoadedModel,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    truth: float | None,
    on_tensors: bool,
) -> None:
    """Three sequences; hits anywhere in their trees, misses, several tokens, unread roots, runs."""
    rng = random.Random(seed)
    shape = real_shape(draft, lookup=5 if truth or on_tensors else 0)
    bench = Bench(draft, reference, shape, on_tensors=on_tensors)
    if truth:
        oracle = Oracle(reference, rng, truth)
        monkeypatch.setattr(DraftSession, "guess", lambda self, *said: oracle.guess(self, *said))
    prompt = words(rng, 21)
    bench.open(0, prompt, SAMPLINGS["greedy"])
    bench.open(1, [*prompt, *words(rng, 2)], SAMPLINGS["sampled"])
    bench.open(2, words(rng, 3), SAMPLINGS["edited"])
    num_moved = 0
    for _ in range(24):
        for _ in range(rng.choice([0, 1, 1, 2])):
            bench.step()
        session_id = rng.choice(list(bench.sessions))
        before = bench.num_computed(session_id)
        bench.outcome(session_id, some_outcome(rng, bench, session_id))
        bench.scheduler._apply()
        bench.scheduler._steps.flush()
        num_moved += bench.num_computed(session_id) > before
    assert bench.num_compared > 80
    assert num_moved > 4, "no outcome took a grown node along"
    bench.close()


def test_children_are_right_where_no_two_blocks_are_neighbours(bench: Bench) -> None:
    rng = random.Random(4)
    scatter(bench)
    session = bench.open(0, words(rng, 21))
    bench.scheduler.check_integrity = lambda: None  # type: ignore[method-assign]  # others hold blocks too
    for _ in range(8):
        bench.step()
        bench.step()
        bench.outcome(0, some_outcome(rng, bench, 0))
    assert bench.num_compared > 20
    table = bench.blocks.block_table(session.row)
    assert len(session.tokens) > 24
    assert all(b - a != 1 for a, b in pairwise(table))


def test_a_text_without_blocks_loses_its_tree_and_goes_on_when_there_are_some(
    draft: LoadedModel, reference: Reference
) -> None:
    bench = Bench(draft, reference, num_blocks=6)
    rng = random.Random(13)
    bench.open(0, words(rng, 12))
    bench.open(1, words(rng, 11))
    for _ in range(3):
        bench.step()
    # All six blocks are taken; the first text needs a fourth, the second does not.
    [path] = [each for each in sorted(bench.paths(0)) if len(each) == 1][:1]
    bench.outcome(0, path)
    bench.outcome(1, words(rng, 1))
    for _ in range(3):
        bench.step()
    assert bench.num_grown(0) == 0
    assert bench.num_computed(0) == 12
    assert bench.num_computed(1) == 12
    assert not bench.scheduler.is_starved, "the other one goes on"
    while bench.step()[1]:
        pass
    assert bench.scheduler.is_starved
    # More outcomes meanwhile: nothing is lost but time.
    bench.outcome(0, words(rng, 2))
    assert bench.step()[1] == 0
    bench.scheduler.close(bench.sessions[1])
    del bench.sessions[1]
    before = bench.num_compared
    assert bench.step()[1] == 3
    assert bench.num_computed(0) == 15
    assert bench.num_compared == before + 1
    bench.close()


def test_a_sequence_beyond_the_context_is_refused(bench: Bench) -> None:
    rng = random.Random(13)
    with pytest.raises(ValueError, match="context ends at 200"):
        bench.open(0, words(rng, 199))
    assert bench.blocks.usage == 0
    bench.open(0, words(rng, 196))
    for _ in range(20):
        bench.step()
    assert max(map(len, bench.paths(0))) == 200 - 196 - 1
    with pytest.raises(ValueError, match="context ends at 200"):
        bench.scheduler.advance(bench.sessions[0], 1, words(rng, 64))
    bench.close()
