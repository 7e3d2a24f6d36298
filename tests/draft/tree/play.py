"""Rounds of a draft's life, drawn: steps, outcomes, and what a line does to them. Both sides must agree.

Outcomes mostly follow the tree. Some are repeated, some lost (the sequence is opened again under another
epoch), frames get lost (the whole tree is asked for), word of arrival stays away (nothing may grow), and
sequences end and begin.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from tests.draft.tree.oracle.session import Session
from tests.draft.tree.pair import MAX_LEN, Pair, Setup

ENDS = (7, 8)


@dataclass(frozen=True, slots=True)
class Game:
    name: str
    setup: Setup
    samplings: tuple[Sampling, ...] = (Sampling(seed=0),)
    """Taken in turns by the sequences that are opened."""


@dataclass
class Player:
    game: Game
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.pair = Pair(self.game.setup)
        self._epoch = 0
        self._open: dict[int, int] = {}
        """By the number of a sequence: its session."""
        self._silent: dict[int, int] = {}
        """Rounds for which no word of arrival comes."""
        for seq in range(self.game.setup.sequences):
            self._begin(seq)

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            for _ in range(self.draw.choice(self.game.setup.steps)):
                self._step()
            for seq in list(self._open):
                self._outcome(seq)
            self.counts["rounds"] += 1
            if self.counts["rounds"] % 16 == 0:
                self.pair.check()

    def _step(self) -> None:
        frames = self.pair.step()
        self.counts["frames"] += len(frames)
        for session_id, frame in frames.items():
            if self.draw.random() < 0.03:
                self.counts["lost frames"] += 1
                frame = self.pair.resync(session_id)
            if not self._silent.get(frame.seq):
                self.pair.note_arrival(session_id, frame.number + 1)

    def _outcome(self, seq: int) -> None:
        session_id, draw = self._open[seq], self.draw
        session = self.pair.sessions[session_id]
        self._silent[seq] = max(0, self._silent.get(seq, 0) - 1)
        if draw.random() < 0.02:
            self._silent[seq] = draw.randint(1, 6)
            self.counts["silences"] += 1
        if not self._silent[seq] and draw.random() < 0.9:
            self.pair.note_arrival(session_id, session._num_sent)
        chance = draw.random()
        if chance < 0.25:
            return
        tokens = self._tokens(session)
        if len(session.tokens) + len(tokens) + 2 > MAX_LEN or chance < 0.26:
            self._again(seq, "ended")
        elif chance < 0.27:
            self.pair.advance(session_id, session.n + 2, tokens)
            self.counts["lost outcomes"] += 1
            assert not any(part.seq == seq for part in self.pair.step().values()), "grew while out of sync"
            self._again(seq, "reopened")
        else:
            self._advance(session_id, session, tokens)

    def _advance(self, session_id: int, session: Session, tokens: list[int]) -> None:
        path = session.tree.walk(tokens) if session.is_root_read else []
        kind = "misses" if len(path) < len(tokens) else "hits"
        self.counts["late" if kind == "hits" and session.tree.slots[path[-1]] < 0 else kind] += 1
        self.pair.advance(session_id, session.n + 1, tokens)
        if self.draw.random() < 0.05:
            self.pair.advance(session_id, session.n, tokens)
            self.counts["repeated outcomes"] += 1
        if self.draw.random() < 0.05:
            more = self._tokens(session)
            if len(session.tokens) + len(more) + 2 <= MAX_LEN:
                self.pair.advance(session_id, session.n + 1, more)
                self.counts["two outcomes at once"] += 1

    def _tokens(self, session: Session) -> list[int]:
        """An outcome: along the tree for a while, then something else, or not."""
        tree, node, found = session.tree, session.tree.root, list[int]()
        for _ in range(min(self.draw.randint(1, 4), self.game.setup.lookahead) + self.draw.randint(0, 1)):
            children = tree.children(node) if session.is_root_read else range(0)
            if not children and found and self.draw.random() < 0.8:
                break
            if not children or self.draw.random() < 0.1:
                found.append(self.draw.randrange(self.game.setup.vocab))
                break
            node = children[min(int(self.draw.expovariate(1.3)), len(children) - 1)]
            found.append(tree.tokens[node])
        return found

    def _again(self, seq: int, kind: str) -> None:
        self.counts[kind] += 1
        self.pair.close(self._open[seq])
        self._begin(seq)

    def _begin(self, seq: int) -> None:
        self._epoch += 1
        game, draw = self.game, self.draw
        sampling = game.samplings[self._epoch % len(game.samplings)]
        prompt = [draw.randrange(game.setup.vocab) for _ in range(draw.randint(1, 60))]
        if self.game.setup.lookup:
            prompt += prompt[: draw.randint(0, len(prompt))]
        named = _seeded(sampling, draw.getrandbits(64))
        opening = Open(seq, self._epoch, pack_ints(prompt), len(prompt), MAX_LEN, game.setup.lookahead, named)
        self._open[seq] = self._epoch
        self.pair.open(self._epoch, opening)


def _seeded(sampling: Sampling, seed: int) -> Sampling:
    values = {name: getattr(sampling, name) for name in Sampling.__struct_fields__}
    return Sampling(**values | {"seed": seed})
