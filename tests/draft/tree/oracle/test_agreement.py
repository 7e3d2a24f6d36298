"""Session and mirror over a wire that delays, drops, doubles and reorders: they never disagree.

The draft's model is a function: three of six tokens may follow a text, and which ones depends on all of it.
Its memory says for each slot which text was computed there. Both machines do what the service and the
client do with a message, and nothing else; every message is encoded and decoded on its way.
"""

import random
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from ssd.draft.client.mirrors import Knowledge
from ssd.draft.protocol.codec import decode, encode
from ssd.draft.protocol.messages import (
    AnyMessage,
    Nodes,
    Open,
    Outcome,
    OutcomeHeads,
    Resync,
    Sampling,
    TreePart,
    pack_ints,
    unpack_ints,
)
from ssd.kvcache.pool import NODES_PER_TREE
from tests.draft.client.one_mirror import ROW, OneMirror
from tests.draft.tree.oracle.session import Session
from tests.draft.tree.oracle.tree import UNNAMED, Tree

WIDEST = 6
"""Nodes of a step, at most."""

VOCAB = 6
SEQ = ROW
Text = tuple[int, ...]


@lru_cache(maxsize=100_000)
def followers(text: Text) -> tuple[int, ...]:
    """What the draft's model expects after a text, likeliest first."""
    return tuple(random.Random(repr(text)).sample(range(VOCAB), 3))


def logprobs_of(epoch: int) -> list[float]:
    """They tell epochs apart: a node of another one would be noticed even where its id and path fit."""
    return [-0.25 - epoch / 64, -1.5 - epoch / 64, -3.0 - epoch / 64]


def below_root(tree: Tree) -> dict[int, tuple[int, Text]]:
    """Of each node below the root, by index: its parent's index and the tokens from the root to it."""
    found: dict[int, tuple[int, Text]] = {}
    waiting: list[tuple[int, Text]] = [(tree.root, ())]
    while waiting:
        node, path = waiting.pop()
        for child in tree.children(node):
            found[child] = (node, (*path, int(tree.tokens[child])))
            waiting.append((child, found[child][1]))
    return found


def content(tree: Tree) -> list[tuple[int, int, int, float]]:
    """Id, parent's id, token and log-probability of every node below the root."""
    return sorted(
        (int(tree.ids[node]), int(tree.ids[parent]), path[-1], float(tree.logprobs[node]))
        for node, (parent, path) in below_root(tree).items()
    )


class Draft:
    """A session with a memory, treated as grower and service treat it."""

    def __init__(self, opening: Open) -> None:
        self.session = Session(opening, max_len=10_000)
        self.memory: dict[int, Text] = {}
        """The keys of the blocks, by position."""
        self.tree_slots: dict[int, Text] = {}

    def path(self, node: int) -> Text:
        session, path = self.session, list[int]()
        while node != session.tree.root:
            path.append(int(session.tree.tokens[node]))
            node = int(session.tree.parents[node])
        return (*session.tokens, *reversed(path))

    def read(self, count: int) -> None:
        session = self.session
        last = min(len(session.tokens), session.num_computed + count)
        for slot in range(session.num_computed, last):
            self.memory[slot] = tuple(session.tokens[: slot + 1])
        session.num_computed = last
        if session.is_root_read:
            self.attach(session.tree.root)

    def growable(self) -> NDArray[np.bool_]:
        """None once the tree slots have no room for the widest step, as a grower would have it."""
        has_room = self.session.num_grown + WIDEST <= NODES_PER_TREE
        return self.session.growable() & has_room

    def grow(self, nodes: Sequence[int]) -> None:
        session = self.session
        branches = session.branches(nodes)
        rows = zip(nodes, branches.positions, branches.nodes, branches.paths, strict=True)
        for node, position, place, bits in rows:
            path = self.path(node)
            assert bits >> place & 1, "a branch does not see itself"
            above = [
                self.tree_slots[each]
                for each in range(bits.bit_length())
                if bits >> each & 1 and each != place
            ]
            seen = [*(self.memory[slot] for slot in range(branches.num_prefix)), *sorted(above, key=len)]
            assert seen == [path[:end] for end in range(1, len(path))], "a branch sees another text's slots"
            assert position == len(path) - 1, "a branch has another position than its path says"
            self.tree_slots[place] = path
        for node in nodes:
            self.attach(node)

    def attach(self, node: int) -> None:
        tokens = np.array(followers(self.path(node)), dtype=np.int32)
        logprobs = np.array(logprobs_of(self.session.epoch), dtype=np.float32)
        self.session.grow(node, tokens, logprobs, logprobs)

    def advance(self, n: int, tokens: Sequence[int]) -> None:
        move = self.session.advance(n, tokens)
        if move is not None:
            moved = [self.tree_slots[place] for place in move.places]
            self.memory.update(enumerate(moved, move.start))

    def check(self) -> None:
        session = self.session
        session.check_integrity()
        for slot in range(session.num_computed):
            assert self.memory[slot] == tuple(session.tokens[: slot + 1]), "the blocks hold another text"
        for node in range(session.tree.size):
            place = session.tree.slots[node]
            assert place < 0 or self.tree_slots[place] == self.path(node), (
                "a grown node lies in another's slot"
            )


def epoch_of(message: AnyMessage) -> int | None:
    if isinstance(message, Outcome):
        return int(message.columns().epoch[0])
    return message.epoch if isinstance(message, Resync | Open) else None


class QuietWire(RuleBasedStateMachine):
    """Everything arrives, in order, at any time."""

    @initialize(prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3))
    def start(self, prompt: list[int]) -> None:
        self.text = list(prompt)
        self.epoch = 0
        self.proposed: dict[tuple[int, int], Text] = {}
        """Of each epoch and id, the text up to and with that token."""
        self.arrived: set[Text] = set()
        """Texts whose last token a delivered frame of this epoch proposed."""
        self.num_sent: dict[int, int] = {}
        """Frames, by epoch."""
        self.to_draft: list[bytes] = []
        self.to_engine: list[bytes] = []
        self.draft: Draft | None = None
        self.greeted = 0
        """The epoch in which this draft was greeted."""
        self.open()

    @property
    def session(self) -> Session | None:
        return self.draft.session if self.draft else None

    # What the engine does.

    def open(self) -> None:
        self.epoch += 1
        self.arrived = set()
        self.mirror = OneMirror(self.epoch, len(self.text))
        tokens = pack_ints(self.text)
        self.to_draft.append(
            encode([Open(SEQ, self.epoch, tokens, 1, 10_000, lookahead=3, sampling=Sampling(seed=0))])
        )

    @rule(
        accepted=st.integers(0, 3),
        own=st.sampled_from(["likely", "likely", "second", "third", "speculated", "stranger"]),
    )
    def outcome(self, accepted: int, own: str) -> None:
        """Along the mirror's speculation, then the target's own token."""
        tokens = self.mirror.speculation(accepted)[0] if accepted else []
        expected = followers((*self.text, *tokens))
        known = self.mirror.speculation(len(tokens) + 1)[0][len(tokens) :]
        strangers = [token for token in range(VOCAB) if token not in expected]
        ranks = {"likely": 0, "second": 1, "third": 2, "speculated": 0}
        token = strangers[0] if own == "stranger" else expected[ranks[own]]
        self.decide([*tokens, known[0] if known and own == "speculated" else token])

    @rule(ranks=st.lists(st.sampled_from([0, 0, 1, 2]), min_size=1, max_size=4))
    def outcome_without_the_draft(self, ranks: list[int]) -> None:
        """Guessed from elsewhere: tokens that the draft will propose, has proposed or is proposing."""
        text = list(self.text)
        for rank in ranks:
            text.append(followers(tuple(text))[rank])
        self.decide(text[len(self.text) :])

    def decide(self, tokens: list[int]) -> None:
        self.text += tokens
        knowledge = self.mirror.advance(tokens)
        assert knowledge is not Knowledge.HIT or self.mirror.speculation(1)[0]
        if tuple(self.text) in self.arrived and not self.mirror.is_out_of_sync and self.is_lossless:
            assert knowledge in (Knowledge.HIT, Knowledge.LATE), "a token that had arrived was not known"
        mirror = self.mirror
        numbers = (SEQ, mirror.epoch, mirror.n, mirror.num_frames, len(tokens))
        heads = OutcomeHeads(*(np.array([number]) for number in numbers))
        self.to_draft.append(encode([Outcome.of(heads, tokens)]))

    def take_at_engine(self, message: AnyMessage) -> None:
        match message:
            case Nodes():
                self.mirror.take(message)
                if message.columns().epoch[0] == self.epoch:
                    ids = message.node_columns()[0].tolist()
                    self.arrived |= {self.proposed[self.epoch, node_id] for node_id in ids}
            case Resync() if message.epoch == self.epoch:
                self.open()

    # What the draft does.

    def take_at_draft(self, message: AnyMessage) -> None:
        session = self.session
        if isinstance(message, Open):
            if message.epoch >= self.greeted and (session is None or message.epoch > session.epoch):
                self.draft = Draft(message)
                self.note_root()
        elif session is None or self.draft is None or epoch_of(message) != session.epoch:
            return
        elif isinstance(message, Outcome):
            heads = message.columns()
            session.note_arrival(int(heads.num_frames[0]))
            was_torn = session.is_out_of_sync
            self.draft.advance(int(heads.n[0]), unpack_ints(message.tokens).tolist())
            self.note_root()
            if session.is_out_of_sync and not was_torn:
                self.to_engine.append(encode([Resync(SEQ, session.epoch)]))
        elif isinstance(message, Resync):
            self.send(session.full_frame())

    @precondition(lambda self: self.session and self.session.may_grow)
    @rule(data=st.data(), chunk=st.sampled_from([99, 99, 99, 1, 2]))
    def grow(self, data: st.DataObject, chunk: int) -> None:
        draft = self.draft
        assert draft is not None
        if not draft.session.is_root_read:
            draft.read(chunk)
        else:
            growable = np.flatnonzero(draft.growable()).tolist()
            if not growable:
                return
            nodes = data.draw(st.lists(st.sampled_from(growable), min_size=1, max_size=3, unique=True))
            draft.grow(nodes)
        frame = draft.session.frame()
        if frame is not None:
            self.send(frame)

    @precondition(lambda self: self.session and self.session.is_root_read and self.session.may_grow)
    @rule(step=st.sampled_from([1, -1, -1]))
    def grow_widely(self, step: int) -> None:
        """The nodes longest known, or the youngest, so that slots and nodes differ in their order."""
        draft = self.draft
        assert draft is not None
        nodes = np.flatnonzero(draft.growable())[::step][:WIDEST].tolist()
        if nodes:
            draft.grow(nodes)
            frame = draft.session.frame()
            assert frame is not None
            self.send(frame)

    @precondition(lambda self: self.session and self.session.may_grow)
    @rule(num_steps=st.integers(2, 5))
    def grow_likeliest(self, num_steps: int) -> None:
        """Some steps down the likeliest path."""
        draft = self.draft
        assert draft is not None
        for _ in range(num_steps):
            if not draft.session.is_root_read:
                draft.read(99)
            else:
                best = draft.session.tree.best_path(99)[-1]
                if not draft.growable()[best]:
                    return
                draft.grow([best])
            frame = draft.session.frame()
            assert frame is not None
            self.send(frame)

    def note_root(self) -> None:
        assert self.session
        self.note(self.session.epoch, self.session.tree.root_id, tuple(self.session.tokens))

    def note(self, epoch: int, node_id: int, path: Text) -> None:
        assert self.proposed.setdefault((epoch, node_id), path) == path, "an id was used for two nodes"

    def send(self, frame: TreePart) -> None:
        assert self.draft is not None
        tree = self.draft.session.tree
        for node in range(tree.size):
            self.note(frame.epoch, int(tree.ids[node]), self.draft.path(node))
        self.num_sent[frame.epoch] = self.num_sent.get(frame.epoch, 0) + 1
        self.to_engine.append(encode([Nodes.of([frame])]))

    # What the wire does.

    is_lossless = True

    @precondition(lambda self: self.to_engine)
    @rule(count=st.integers(1, 3))
    def deliver_to_engine(self, count: int) -> None:
        for _ in range(min(count, len(self.to_engine))):
            self.arrive_at_engine(0)

    @precondition(lambda self: self.to_draft)
    @rule(count=st.integers(1, 3))
    def deliver_to_draft(self, count: int) -> None:
        for _ in range(min(count, len(self.to_draft))):
            self.arrive_at_draft(0)

    def arrive_at_engine(self, place: int) -> None:
        for message in decode(self.to_engine.pop(place), vocab_size=VOCAB):
            self.take_at_engine(message)

    def arrive_at_draft(self, place: int) -> None:
        for message in decode(self.to_draft.pop(place), vocab_size=VOCAB):
            self.take_at_draft(message)

    def deliver_all(self) -> None:
        while self.to_draft or self.to_engine:
            while self.to_draft:
                self.arrive_at_draft(0)
            while self.to_engine:
                self.arrive_at_engine(0)

    # What always holds.

    @invariant()
    def both_sides_are_whole(self) -> None:
        self.mirror.check()
        if self.draft:
            self.draft.check()
            assert self.draft.session.tokens == self.text[: len(self.draft.session.tokens)]

    @invariant()
    def the_mirror_holds_what_the_draft_proposed(self) -> None:
        mirror, text = self.mirror, tuple(self.text)
        assert mirror.table.length[ROW] == len(text)
        assert mirror.root_id == UNNAMED or self.proposed[self.epoch, mirror.root_id] == text
        logprobs = np.array(logprobs_of(self.epoch), dtype=np.float32)
        for node, parent, token, logprob in mirror.content:
            path = self.proposed[self.epoch, node]
            assert (path[: len(text)], path[-1]) == (text, token)
            assert self.proposed[self.epoch, parent] == path[:-1]
            assert np.float32(logprob) in logprobs, "a node of another epoch"

    @invariant()
    def nothing_that_arrived_is_lost(self) -> None:
        if self.is_lossless:
            assert not self.mirror.is_out_of_sync
            assert self.session is None or not self.session.is_out_of_sync
            text = tuple(self.text)
            held = {self.proposed[self.epoch, node] for node, *_ in self.mirror.content}
            due = {each for each in self.arrived if len(each) > len(text) and each[: len(text)] == text}
            assert held == due

    @invariant()
    def all_delivered_is_all_equal(self) -> None:
        session, mirror = self.session, self.mirror
        if session is None or self.to_draft or self.to_engine:
            return
        if (
            session.is_out_of_sync
            or mirror.is_out_of_sync
            or (session.epoch, session.n) != (mirror.epoch, mirror.n)
        ):
            return
        if mirror.num_frames == self.num_sent.get(self.epoch, 0):
            assert mirror.content == content(session.tree)
            assert mirror.root_id == session.tree.root_id or not content(session.tree)

    @rule()
    def settle(self) -> None:
        self.deliver_all()

    def teardown(self) -> None:
        if hasattr(self, "mirror"):
            self.settle()
            self.all_delivered_is_all_equal()


class LossyWire(QuietWire):
    """Frames get lost, come twice, overtake each other; the draft is restarted."""

    is_lossless = False

    def place(self, data: st.DataObject, wire: list[bytes]) -> int:
        return data.draw(st.integers(0, len(wire) - 1))

    @precondition(lambda self: self.to_engine)
    @rule(data=st.data())
    def overtake_to_engine(self, data: st.DataObject) -> None:
        self.arrive_at_engine(self.place(data, self.to_engine))

    @precondition(lambda self: self.to_draft)
    @rule(data=st.data())
    def overtake_to_draft(self, data: st.DataObject) -> None:
        self.arrive_at_draft(self.place(data, self.to_draft))

    @precondition(lambda self: self.to_engine or self.to_draft)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        wire = data.draw(st.sampled_from([each for each in (self.to_engine, self.to_draft) if each]))
        wire.pop(self.place(data, wire))

    @precondition(lambda self: self.to_engine or self.to_draft)
    @rule(data=st.data())
    def double(self, data: st.DataObject) -> None:
        wire = data.draw(st.sampled_from([each for each in (self.to_engine, self.to_draft) if each]))
        place = self.place(data, wire)
        wire.insert(data.draw(st.integers(place, len(wire))), wire[place])

    @precondition(lambda self: self.mirror.is_out_of_sync)
    @rule()
    def ask_for_the_tree(self) -> None:
        self.to_draft.append(encode([Resync(SEQ, self.mirror.epoch)]))

    @precondition(lambda self: len(self.to_engine) > 1)
    @rule(ranks=st.lists(st.sampled_from([0, 0, 1, 2]), max_size=3))
    def lose_ask_and_go_on(self, ranks: list[int]) -> None:
        """The target decides while the whole tree is on its way: it comes for an older root."""
        self.to_engine.pop(0)
        while self.to_engine:
            self.arrive_at_engine(0)
        if self.mirror.is_out_of_sync:
            self.ask_for_the_tree()
            while self.to_draft:
                self.arrive_at_draft(0)
            for rank in ranks:
                self.decide([followers(tuple(self.text))[rank]])

    @precondition(lambda self: self.session and self.session.is_out_of_sync)
    @rule()
    def ask_for_the_tokens(self) -> None:
        """Again: the first time it may have got lost."""
        assert self.session
        self.to_engine.append(encode([Resync(SEQ, self.session.epoch)]))

    @rule()
    def restart_draft(self) -> None:
        """Old frames, and old words to the draft, are still on their way; it hears none before HELLO."""
        self.draft = None
        self.open()
        self.greeted = self.epoch

    @rule()
    def settle(self) -> None:
        """Once nothing is lost any more, two questions are enough to agree again."""
        for _ in range(3):
            self.deliver_all()
            session = self.session
            if session is None or session.epoch != self.epoch:
                self.open()
            elif session.is_out_of_sync:
                self.ask_for_the_tokens()
            elif session.n != self.mirror.n or self.mirror.is_out_of_sync:
                # A lost last outcome is noticed with the next one, a torn mirror asks.
                self.decide([followers(tuple(self.text))[0]])
                if self.mirror.is_out_of_sync:
                    self.ask_for_the_tree()
            elif not self.to_draft and not self.to_engine:
                break
        self.deliver_all()
        assert not self.mirror.is_out_of_sync
        session = self.session
        assert session
        assert (session.epoch, session.n, session.is_out_of_sync) == (self.epoch, self.mirror.n, False)
        assert session.tokens == self.text


RELAXED = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    # Not `explain`: it traces every line, which takes minutes here.
    "phases": [phase for phase in settings().phases if phase is not Phase.explain],
}
QuietWire.TestCase.settings = settings(max_examples=100, stateful_step_count=40, **RELAXED)  # type: ignore[arg-type]
LossyWire.TestCase.settings = settings(max_examples=150, stateful_step_count=50, **RELAXED)  # type: ignore[arg-type]
TestQuietWire = pytest.mark.timeout(120)(QuietWire.TestCase)
TestLossyWire = pytest.mark.timeout(120)(LossyWire.TestCase)
