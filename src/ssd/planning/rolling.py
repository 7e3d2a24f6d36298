"""The rolling tree under a clock of its own: how fast SSD is, by running its own parts in simulated time.

Tree, growth policies and controller are those of the engine; the models are replaced by texts (what a draft
would guess, what the target takes) and by seconds. Draft and target each work at their own pace: the draft
grows the tree step by step and hears of an outcome between two steps, the target verifies what is known
whenever it is free. Deterministic by its seed. Knows no hardware and no tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssd.draft.controller import Controller
from ssd.planning.followed_text import FollowedText, Shape
from ssd.planning.growth import NEVER, GrowthPolicy, growth_policy
from ssd.planning.text import Text
from ssd.planning.times import PairTimes
from ssd.planning.tree import UNGROWN, Tree

_MAX_GROWN = 128


@dataclass(slots=True)
class Tally:
    """What came out, summed over all sequences."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    hits: int = 0
    late: int = 0
    unknown: int = 0
    waited: float = 0.0
    draft_steps: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.hits + self.late + self.unknown)


@dataclass(frozen=True, slots=True)
class _Step:
    """A draft's forward under way: what it grows, the likeliest first, and when it ends."""

    ends: float
    grown: list[tuple[FollowedText, int]]

    def by_sequence(self) -> list[tuple[FollowedText, list[int]]]:
        found: dict[int, tuple[FollowedText, list[int]]] = {}
        for each, node in self.grown:
            found.setdefault(id(each), (each, []))[1].append(node)
        return list(found.values())


class Simulation:
    """A batch of sequences that start together; those that end are not replaced."""

    def __init__(self, times: PairTimes, shape: Shape, *, seed: int = 0) -> None:
        self._target = times.target.slower(times.target_beside)
        self._draft = times.draft.slower(times.draft_beside)
        self._host, self._shape = times.host, shape
        self._policy: GrowthPolicy = growth_policy(shape.growth, width=shape.width)
        self._draw = np.random.default_rng(seed)
        self._controller = Controller()
        self._round, self._draft_step = 0.0, 0.0
        """Seconds of the latest ones, by which the draft knows what is to come."""

    def run(self, texts: Sequence[Text], tally: Tally, *, most_tokens: float = math.inf) -> None:
        """Adds what decoding these texts as one batch comes to, or the first so many tokens of them."""
        self._all = [FollowedText(text, self._shape, self._draw) for text in texts]
        self._now, self._since = 0.0, 0.0
        self._step = self._begin_step(0.0)
        most_tokens += tally.tokens
        while self._alive and tally.tokens < most_tokens:
            self._verify(self._alive, tally)
        tally.seconds += self._now

    @property
    def _alive(self) -> list[FollowedText]:
        return [each for each in self._all if not each.is_done]

    def _verify(self, alive: list[FollowedText], tally: Tally) -> None:
        self._advance_draft(self._now, tally)
        paths = [self._path(each) for each in alive]
        waited = None if any(paths) else self._wait(alive, tally)
        guessed = [self._guess(each, path) for each, path in zip(alive, waited or paths, strict=True)]
        paths = [path or guess for path, guess in zip(waited or paths, guessed, strict=True)]
        lengths = self._controller.choose(paths, len(alive))
        if waited and not any(lengths):
            self._controller.note_first(accepted=False)
        rows = len(alive) + sum(lengths)
        seconds = self._target.seconds(rows)
        self._controller.times.note(rows, seconds, is_speculating=any(lengths))
        self._now += seconds + self._host
        self._advance_draft(self._now, tally)
        for each, guess, length in zip(alive, guessed, lengths, strict=True):
            num_accepted = self._right_guesses(each, length) if guess else self._accepted(each, length)
            decided = each.truth(num_accepted + 1)
            tally.tokens += len(decided)
            tally.rounds += 1
            cause = each.advance(decided)
            if not each.is_done:
                setattr(tally, _COUNTS[cause], getattr(tally, _COUNTS[cause]) + 1)
        self._round, self._since = self._now - self._since, self._now

    def _path(self, each: FollowedText) -> list[float]:
        """The chances of the speculation's tokens."""
        if each.owed:
            return []
        tree = each.tree
        nodes = tree.best_path(self._shape.lookahead)
        return [float(np.exp(tree.values[node] - tree.values[tree.root])) for node in nodes]

    def _guess(self, each: FollowedText, path: list[float]) -> list[float]:
        """`ngram`: where nothing else is known, the chances of what the earlier text foretells.

        Texts tell where that is right; where it would be wrong, and cost rows for nothing, they do not.
        """
        if path or self._shape.backup not in ("auto", "ngram") or not each.text.runs[each.place]:
            return []
        return self._controller.guess_chances(self._shape.lookahead)

    def _accepted(self, each: FollowedText, length: int) -> int:
        """How many of the draft's likeliest tokens are right, of the `length` that are verified."""
        truth, right = each.truth(length), 0
        while right < len(truth) and truth[right] == 0:
            right += 1
        if length:
            self._controller.note_first(accepted=right > 0)
        return right

    def _right_guesses(self, each: FollowedText, length: int) -> int:
        right = min(int(each.text.runs[each.place]), length)
        if length:
            self._controller.note_guess(accepted=right > 0)
        return right

    def _wait(self, alive: list[FollowedText], tally: Tally) -> list[list[float]] | None:
        """`jit`: for a draft step, if that pays."""
        if self._shape.backup not in ("auto", "jit") or self._step is None:
            return None
        longest = self._controller.longest_wait(len(alive), self._draft.seconds(self._shape.width))
        if longest <= 0:
            return None
        started = self._now
        while self._step is not None and self._step.ends <= started + longest:
            self._now = self._step.ends
            self._advance_draft(self._now, tally)
            paths = [self._path(each) for each in alive]
            if any(paths):
                break
        else:
            paths = [self._path(each) for each in alive]
            self._now = started + longest
        tally.waited += self._now - started
        self._controller.note_wait(self._now - started)
        return paths

    def _advance_draft(self, until: float, tally: Tally) -> None:
        """Draft steps that end by then; the next begins at once, with what is decided so far."""
        if self._step is None:
            self._step = self._begin_step(until)
        while self._step is not None and self._step.ends <= until:
            ended = self._step
            self._end_step(ended)
            tally.draft_steps += 1
            self._step = self._begin_step(ended.ends)

    def _begin_step(self, now: float) -> _Step | None:
        alive = self._alive
        for each in alive:
            each.before_step()
        unread = [each for each in alive if not each.is_root_read]
        grown = [(each, each.tree.root) for each in unread]
        room = max(0, self._shape.width - len(unread))
        grown += self._choose([each for each in alive if each.is_root_read], room, self._steps_left(now))
        if not grown:
            return None
        self._draft_step = self._draft.seconds(len(grown))
        return _Step(now + self._draft_step, grown)

    def _steps_left(self, now: float) -> int:
        """Before the next outcome: a tree's room is for all of them (`draft/forest/rounds.py`)."""
        left = self._round - (now - self._since)
        return max(1, math.ceil(left / self._draft_step)) if self._draft_step else 1

    def _choose(
        self, ready: list[FollowedText], count: int, steps_left: int
    ) -> list[tuple[FollowedText, int]]:
        candidates: list[tuple[float, int, int]] = []
        for index, each in enumerate(ready):
            room = min(count, -(-(_MAX_GROWN - each.num_grown) // steps_left))
            growable = each.growable()
            if room <= 0 or not growable:
                continue
            priorities = self._policy.priorities(each.tree)[growable]
            best = np.argsort(-priorities, kind="stable")[:room]
            candidates += [(-float(priorities[i]), index, growable[i]) for i in best if priorities[i] > NEVER]
        return [(ready[i], node) for _, i, node in sorted(candidates)[:count]]

    def _end_step(self, step: _Step) -> None:
        behind = step.grown[0] if self._shape.lookup else None
        for each, nodes in step.by_sequence():
            path = each.true_path()
            for node in nodes:
                if each.tree.slots[node] == UNGROWN and _is_below(each.tree, node):
                    each.grow(node, path)
                    if (each, node) == behind:
                        each.grow_run(node, path)
            if each.owed:
                each.walk_owed()


_COUNTS = {"hit": "hits", "late": "late", "unknown": "unknown"}


def _is_below(tree: Tree, node: int) -> bool:
    while node > tree.root:
        node = tree.parents[node]
    return node == tree.root


def simulate(texts: Sequence[Text], times: PairTimes, shape: Shape, *, seed: int = 0) -> Tally:
    """SSD over these texts, one after the other."""
    simulation, tally = Simulation(times, shape, seed=seed), Tally()
    for text in texts:
        simulation.run([text], tally)
    return tally


def simulate_batch(
    texts: Sequence[Text], times: PairTimes, shape: Shape, *, num_tokens: int, seed: int = 0
) -> Tally:
    """SSD over these texts at the same time, up to so many tokens; none should end before that."""
    tally = Tally()
    Simulation(times, shape, seed=seed).run(texts, tally, most_tokens=num_tokens)
    return tally
