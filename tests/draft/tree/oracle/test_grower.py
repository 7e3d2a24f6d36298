"""Grown by a real model: children are those of a plain forward over the whole text, whatever came before."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from ssd.attention.inputs import Branches, PlainInput
from ssd.config import RunnerConfig
from ssd.draft.protocol.messages import Open, Sampling, TreePart, pack_ints
from ssd.draft.server.session import CREDIT
from ssd.draft.tree.children import likely_children
from ssd.kvcache.block_manager import BlockManager, OutOfBlocks
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward
from tests.draft.tree.oracle.grower import Grower, GrowthLimits, OutOfTrees
from tests.draft.tree.oracle.growth import growth_policy
from tests.draft.tree.oracle.session import Session
from tests.tiny import write_checkpoint

BLOCK = 4
END = 1
VOCAB = 512
LIMITS = GrowthLimits(width=6, num_children=3, max_grown=20, prefill_chunk=16, max_model_len=200)
PLAIN = Sampling(seed=1)
LOOKAHEAD = 4


def load(folder: Path) -> LoadedModel:
    return load_model(
        RunnerConfig(
            model=str(folder),
            dtype="float32",
            device="cpu",
            max_model_len=200,
            num_blocks=160,
            num_trees=8,
            block_size=BLOCK,
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("llama3", tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def draft(folder: Path) -> LoadedModel:
    return load(folder)


class Reference:
    """The same model with a pool of its own, over a whole text from scratch."""

    def __init__(self, folder: Path) -> None:
        self._model = load(folder)

    def logits(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        runner, blocks = self._model.runner, range(self._model.pool.shape.num_blocks)
        rows = [PlainInput(text, 0, blocks, 1, generated=False) for text in texts]
        return torch.cat([forward(runner, [row]) for row in rows])


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


class Bench:
    """A grower with its blocks, whose every new child is compared with the reference."""

    def __init__(self, draft: LoadedModel, reference: Reference, limits: GrowthLimits = LIMITS) -> None:
        # What other tests left behind must not matter.
        draft.pool.keys.fill_(7.0)
        draft.pool.values.fill_(7.0)
        self.reference = reference
        self.limits = limits
        self.blocks = BlockManager(draft.pool.shape.num_blocks, BLOCK)
        policy = growth_policy("value", width=limits.width)
        self.grower = Grower(draft.runner, draft.pool, self.blocks, limits, policy)
        self.sessions: dict[int, Session] = {}
        self.num_compared = 0
        self.fillers: list[int] = []

    def scatter(self) -> None:
        """From here on no two free blocks are neighbours."""
        fillers = range(1000, 1000 + self.blocks.num_blocks)
        for filler in fillers:
            self.blocks.allocate(filler, [filler])
        for filler in fillers:
            if self.blocks.block_table(filler)[0] % 2:
                self.blocks.free(filler)
        self.fillers = [filler for filler in fillers if filler in self.blocks.seq_ids]

    def close(self) -> None:
        """At the end every block is free again."""
        for session_id in self.sessions:
            self.grower.close(session_id)
            self.blocks.check_integrity()
        for filler in self.fillers:
            self.blocks.free(filler)
        assert self.blocks.usage == 0
        self.blocks.check_integrity()

    def check(self) -> None:
        if not self.fillers:
            self.grower.check_integrity()
        for session in self.sessions.values():
            session.check_integrity()
        self.blocks.check_integrity()

    def open(
        self, session_id: int, tokens: Sequence[int], sampling: Sampling = PLAIN, max_len: int = 200
    ) -> Session:
        opening = Open(session_id, 1, pack_ints(tokens), len(tokens), max_len, LOOKAHEAD, sampling)
        session = Session(opening, max_len=self.grower.max_model_len)
        self.grower.open(session_id, session)
        self.sessions[session_id] = session
        return session

    def step(self) -> tuple[dict[int, TreePart], int]:
        frames, num_rows = self.grower.step()
        self.check()
        for session_id, frame in frames.items():
            self.compare(self.sessions[session_id], frame)
            self.sessions[session_id].note_arrival(frame.number + 1)
        return frames, num_rows

    def outcome(self, session_id: int, tokens: Sequence[int]) -> None:
        self.grower.advance(session_id, self.sessions[session_id].n + 1, tokens)
        self.check()

    def compare(self, session: Session, frame: TreePart) -> None:
        tree = session.tree
        nodes = [tree.ids.index(parent) for parent in dict.fromkeys(frame.parents)]
        texts = [[*session.tokens, *path_to(session, node)] for node in nodes]
        rows = [session.sampling_row(node) for node in nodes]
        for row, text in zip(rows, texts, strict=True):
            assert [*row.prompt, *row.output] == text
            assert row.position == len(text)
        count = self.limits.num_children
        expected = likely_children(self.reference.logits(texts), rows, count + 5)
        for node, wanted in zip(nodes, expected, strict=True):
            found = tree.children(node)
            assert len(found) == min(count, len(wanted.tokens))
            raws = tree.raws[found.start : found.stop]
            assert raws == pytest.approx(wanted.raws[: len(found)], abs=1e-4)
            # By token, not by place: equal scores may change places.
            said = dict(zip(wanted.tokens.tolist(), wanted.raws.tolist(), strict=True))
            for token, raw in zip(tree.tokens[found.start : found.stop], raws, strict=True):
                assert said[token] == pytest.approx(raw, abs=1e-4)
            self.num_compared += 1


@pytest.fixture
def bench(draft: LoadedModel, reference: Reference) -> Iterator[Bench]:
    bench = Bench(draft, reference)
    yield bench
    bench.close()


def path_to(session: Session, node: int) -> list[int]:
    tree, path = session.tree, list[int]()
    while node != tree.root:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path[::-1]


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(2, VOCAB) for _ in range(count)]


def some_outcome(rng: random.Random, session: Session) -> list[int]:
    """A node anywhere in the tree, sometimes with tokens behind it that it does not know."""
    kind = rng.choice(["deep", "deep", "grown", "any", "miss", "long"])
    tree = session.tree
    if kind == "miss" or tree.size == 1:
        return words(rng, rng.choice([1, 1, 3]))
    depths = tree.relative_depths()
    grown = np.flatnonzero(np.array(tree.slots) >= 0)
    if kind == "grown" and len(grown):
        node = int(rng.choice(grown.tolist()))
    elif kind == "deep":
        node = int(rng.choice(np.flatnonzero(depths >= depths.max() - 1).tolist()))
    else:
        node = rng.randrange(1, tree.size)
    more = words(rng, rng.choice([1, 2, 5])) if kind == "long" else []
    return [*path_to(session, node), *more] or words(rng, 1)


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


@pytest.mark.parametrize(("seed", "scattered"), [(3, False), (1, False), (2, True)])
def test_children_equal_a_forward_from_scratch_after_any_outcomes(
    bench: Bench, seed: int, scattered: bool
) -> None:
    """Three sequences in one grower; hits anywhere in the tree, misses, several tokens, unread roots."""
    rng = random.Random(seed)
    if scattered:
        bench.scatter()
    prompt = words(rng, 21)
    bench.open(0, prompt, SAMPLINGS["greedy"])
    bench.open(1, [*prompt, *words(rng, 2)], SAMPLINGS["sampled"])
    bench.open(2, words(rng, 3), SAMPLINGS["edited"])
    num_moved = 0
    for _ in range(45):
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            bench.step()
        session_id = rng.choice(list(bench.sessions))
        session = bench.sessions[session_id]
        if len(session.tokens) > (80 if scattered else 150):
            continue
        before = session.num_computed
        bench.outcome(session_id, some_outcome(rng, session))
        num_moved += session.num_computed > before
    assert bench.num_compared > 150
    assert num_moved > 10, "no outcome took a grown node along"
    tables = [list(bench.blocks.block_table(session_id)) for session_id in bench.sessions]
    assert not scattered or all(b - a != 1 for table in tables for a, b in pairwise(table))


def test_nodes_far_down_a_path_have_the_positions_of_their_path(bench: Bench) -> None:
    """A chain to the largest depth: each node's place in the text is far from its slot's order."""
    rng = random.Random(4)
    session = bench.open(0, words(rng, 9))
    for _ in range(8):
        bench.step()
    depths = session.tree.relative_depths()
    grown = np.array(session.tree.slots) >= 0
    assert depths[grown].max() >= 3
    branches = session.branches(np.flatnonzero(session.growable()).tolist())
    assert max(branches.positions) > min(branches.positions)


def test_the_model_feels_positions(reference: Reference, draft: LoadedModel) -> None:
    """A test of these tests: were it not so, a wrong position would go unnoticed."""
    tokens = words(random.Random(1), 30)
    right = reference.logits([tokens])
    forward(draft.runner, [PlainInput(tokens[:-1], 0, range(8), 0, generated=False)])
    elsewhere = Branches([30], 29, draft.pool.shape.tree_start(0), [0], [1])
    row = PlainInput(tokens[-1:], 0, range(8), 1, generated=True, branches=elsewhere)
    wrong = forward(draft.runner, [row])
    assert (right - wrong).abs().max() > 0.05


def test_a_closed_sequence_gives_back_its_tree_slots(draft: LoadedModel, reference: Reference) -> None:
    """As many sequences as have tree slots, then one more: it waits until another goes."""
    bench = Bench(draft, reference)
    for session_id in range(draft.pool.shape.num_trees):
        bench.open(session_id, words(random.Random(session_id), 3))
    with pytest.raises(OutOfTrees):
        bench.open(99, [1, 2, 3])
    bench.grower.check_integrity()
    bench.grower.close(0)
    bench.grower.check_integrity()
    bench.open(100, [1, 2, 3])
    del bench.sessions[0]
    bench.close()


def test_a_prompt_is_read_in_chunks(bench: Bench) -> None:
    session = bench.open(0, words(random.Random(5), 40))
    seen = []
    for _ in range(3):
        frames, num_rows = bench.step()
        seen.append((session.num_computed, num_rows, len(frames)))
    assert seen == [(16, 16, 0), (32, 16, 0), (40, 8, 1)]
    assert session.tree.size == 4


def test_a_root_that_is_one_token_behind_does_not_wait_for_a_prompt(bench: Bench) -> None:
    rng = random.Random(6)
    short = bench.open(0, words(rng, 4))
    bench.step()
    bench.open(1, words(rng, 60))
    bench.outcome(0, [int(short.tree.tokens[1])])
    frames, num_rows = bench.step()
    assert short.is_root_read
    assert list(frames) == [0]
    assert num_rows == 16


def test_a_prompt_that_is_read_starves_nobodys_tree(bench: Bench) -> None:
    rng = random.Random(18)
    running = bench.open(0, words(rng, 5))
    bench.step()
    bench.step()
    bench.open(1, words(rng, 40))
    before = running.num_grown
    assert bench.step()[1] == LIMITS.prefill_chunk + LIMITS.width
    assert running.num_grown == before + LIMITS.width


def test_what_a_text_has_gained_counts_towards_the_width(bench: Bench) -> None:
    rng = random.Random(19)
    for session_id in range(2):
        bench.open(session_id, words(rng, 5))
    for _ in range(3):
        bench.step()
    bench.outcome(0, [END + 7, END + 8])
    assert bench.step()[1] == LIMITS.width


def test_a_known_prefix_is_not_read_again(bench: Bench) -> None:
    prompt = words(random.Random(7), 17)
    bench.open(0, prompt)
    bench.step()
    bench.step()
    again = bench.open(1, prompt)
    assert again.num_computed == 16
    bench.step()
    assert again.is_root_read
    assert again.tree.tokens[1:4] == bench.sessions[0].tree.tokens[1:4]


def test_width_children_and_room_hold(bench: Bench) -> None:
    rng = random.Random(8)
    for session_id in range(3):
        bench.open(session_id, words(rng, 3))
    for _ in range(40):
        _frames, num_rows = bench.step()
        assert num_rows <= max(LIMITS.width, 9)
        for session in bench.sessions.values():
            assert session.num_grown <= LIMITS.max_grown
            assert max(session.tree.num_children) <= LIMITS.num_children
    assert all(session.num_grown == LIMITS.max_grown for session in bench.sessions.values())
    assert bench.step() == ({}, 0)


def test_nothing_is_grown_deeper_than_twice_the_lookahead(draft: LoadedModel, reference: Reference) -> None:
    bench = Bench(draft, reference, replace(LIMITS, num_children=1, max_grown=64))
    session = bench.open(0, words(random.Random(9), 3))
    for _ in range(30):
        bench.step()
    assert session.tree.relative_depths().max() == 2 * LOOKAHEAD + 2
    assert bench.step() == ({}, 0)


def test_the_highest_values_are_grown_first(bench: Bench) -> None:
    rng = random.Random(10)
    for session_id in range(2):
        bench.open(session_id, words(rng, 5))
    bench.step()
    for _ in range(5):
        waiting = [
            float(session.tree.relative_values()[node])
            for session in bench.sessions.values()
            for node in np.flatnonzero(session.growable())
        ]
        known = {key: set(np.flatnonzero(each.growable())) for key, each in bench.sessions.items()}
        bench.step()
        grown = [
            float(each.tree.relative_values()[node])
            for key, each in bench.sessions.items()
            for node in known[key] - set(np.flatnonzero(each.growable()))
        ]
        assert sorted(grown) == sorted(waiting)[-LIMITS.width :]


def test_without_credit_nothing_grows(draft: LoadedModel, reference: Reference) -> None:
    bench = Bench(draft, reference, replace(LIMITS, width=1, max_grown=100))
    session = bench.open(0, words(random.Random(11), 3))
    num_frames = 0
    while True:
        frames, num_rows = bench.grower.step()
        if not num_rows:
            break
        num_frames += len(frames)
    assert num_frames == CREDIT
    assert not session.may_grow
    session.note_arrival(1)
    assert bench.grower.step()[1] == 1
    assert bench.grower.step()[1] == 0
    bench.grower.close(0)
    assert bench.blocks.usage == 0


def test_without_credit_not_even_a_root_is_read(draft: LoadedModel, reference: Reference) -> None:
    bench = Bench(draft, reference, replace(LIMITS, width=1, max_grown=100))
    session = bench.open(0, words(random.Random(11), 3))
    while bench.grower.step()[1]:
        pass
    bench.outcome(0, [400])
    assert bench.grower.step() == ({}, 0)
    session.note_arrival(CREDIT)
    bench.step()
    assert session.is_root_read


def test_an_out_of_sync_session_rests(bench: Bench) -> None:
    session = bench.open(0, words(random.Random(12), 3))
    bench.step()
    bench.grower.advance(0, 2, [5])
    assert session.is_out_of_sync
    assert bench.step() == ({}, 0)
    bench.grower.advance(0, 1, [5])
    assert len(session.tokens) == 3


def test_a_sequence_beyond_the_context_is_refused(bench: Bench) -> None:
    rng = random.Random(13)
    with pytest.raises(ValueError, match="context ends at 200"):
        bench.open(0, words(rng, 199))
    assert bench.blocks.usage == 0
    session = bench.open(0, words(rng, 196))
    for _ in range(20):
        bench.step()
    assert session.tree.relative_depths().max() == 200 - 196 - 1
    with pytest.raises(ValueError, match="context ends at 200"):
        bench.grower.advance(0, 1, words(rng, 3))


def test_nothing_is_grown_beyond_what_is_asked_for(bench: Bench) -> None:
    session = bench.open(0, words(random.Random(14), 10), max_len=13)
    for _ in range(12):
        bench.step()
    assert session.tree.relative_depths().max() == 2


def test_a_sequence_that_does_not_fit_is_refused_and_leaves_nothing(bench: Bench) -> None:
    rng = random.Random(15)
    for session_id in range(3):
        bench.open(session_id, words(rng, 190))
    with pytest.raises(OutOfBlocks):
        bench.open(3, words(rng, 190))
    bench.grower.check_integrity()
    assert bench.grower.num_sessions == 3
    # The blocks that are left are soon grown over; then what there is goes on without more.
    for _ in range(60):
        bench.step()


def test_nothing_follows_an_end(bench: Bench) -> None:
    rng = random.Random(16)
    sampling = Sampling(seed=1, logit_bias=[(END, 100.0)], end_ids=[END])
    session = bench.open(0, words(rng, 4), sampling)
    for _ in range(10):
        bench.step()
    tree = session.tree
    ends = [node for node in range(1, tree.size) if tree.tokens[node] == END]
    assert len(ends) > 3, "every node's likeliest child is the end"
    assert all(tree.num_children[node] == 0 and tree.slots[node] < 0 for node in ends)
    # The target may go on all the same.
    bench.outcome(0, [END])
    bench.step()
    assert session.is_root_read
    assert session.tree.size > 1


def test_outcomes_that_were_applied_are_ignored(bench: Bench) -> None:
    session = bench.open(0, words(random.Random(17), 5))
    bench.step()
    bench.outcome(0, [9])
    tokens = list(session.tokens)
    bench.grower.advance(0, 1, [10])
    assert session.tokens == tokens
    bench.step()
