"""The oracle of coupled acceptance: with any noise and under any schedule, the output is its definition.

    y = argmax(z/T + g), token by token, in float64, written down here once more

Noise is injected where the sampler asks for it: tables of ordinary values, of ties and of extremes.
Speculations are right, wrong, cut, stale, guessed or missing, chains or trees, in any order. All numbers are
multiples of 1/16, so that float32 and float64 agree and ties are ties in both. Live tokens are three to five;
in some cases they lie far apart in a vocabulary of thousands, where the sampler takes its other way.

    python -m tests.oracle.coupled --tables 100000         runs that many and prints the differences
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.attention.inputs import SequenceInput
from ssd.decoding.rows import DecodeRow, Speculation
from ssd.decoding.tree_slots import TreeSlots
from ssd.decoding.verification import verify
from ssd.draft.client.proposals import cut, parents_of, simplified
from ssd.sampling import History, SamplingParams, SamplingRow
from tests.oracle.table_runner import BLOCK_SIZE, TableRunner
from tests.oracle.tree_shapes import some_speculation
from tests.row_runner import RowRunner

LENGTH = 6
LOOKAHEAD = 3
BATCH = 32
NUM_BLOCKS = 4
"""Of each sequence: room for the prompt, the output and what is drafted at its end."""
FAR_APART = 500
BESIDE, MOST_NODES = 1 << 20, 24
"""The slots from which on trees lie, and nodes of one."""

ORDINARY = tuple(n / 8 for n in range(-25, 80))
TIED = (0.0, 0.5)
EXTREME = (-3.125, 0.0, 22.875)
LOGITS = (-4096.0, -8.0, -1.0, 0.0, 0.25, 0.5, 1.0, 4.0, 16.0, 4096.0)
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, presence_penalty=0.5),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=4.0),
    SamplingParams(temperature=2.0, frequency_penalty=0.25, presence_penalty=0.5),
)


class Case:
    """A target, a table of noise and parameters, all drawn from a number; and how far its output has come."""

    def __init__(self, number: int, vocab: int, stride: int = 1) -> None:
        self.number, self.vocab, self.stride = number, vocab, stride
        self.output: list[int] = []
        self.num_computed = 0
        self.random = random.Random(number)
        self.params = self.random.choice(PARAMS)
        self.logits = self.random.sample(LOGITS, self.random.randint(2, len(LOGITS)))
        self.prompt = [self.draw_token() for _ in range(self.random.randint(1, 3))]
        values = self.random.choice((ORDINARY, TIED, EXTREME, ORDINARY + EXTREME))
        shape = (len(self.prompt) + LENGTH + LOOKAHEAD + 1, self.vocab)
        self.noise = np.array(self.random.choices(values, k=math.prod(shape))).reshape(shape)
        self.definition = self._define()
        self.schedule = self.random.sample(SCHEDULES, self.random.randint(1, len(SCHEDULES)))

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    def truth(self) -> list[int]:
        return self.definition[len(self.output) :]

    def take(self, new: Sequence[int]) -> None:
        self.num_computed = len(self.tokens) + len(new) - 1
        self.output += new

    def draw_token(self) -> int:
        return self.random.randrange(self.vocab) * self.stride

    def live_logits(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        return np.array(random.Random(repr((self.number, list(tokens)))).choices(self.logits, k=self.vocab))

    def all_logits(self, tokens: tuple[int, ...]) -> Tensor:
        return self.spread(self.live_logits(tokens), -math.inf)

    def spread(self, live: NDArray[np.float64], rest: float) -> Tensor:
        """Values of live tokens at their places in the vocabulary."""
        values = torch.full(((self.vocab - 1) * self.stride + 1,), rest)
        values[:: self.stride] = torch.from_numpy(live).float()
        return values

    def _define(self) -> list[int]:
        """THE definition: LENGTH tokens, and what a speculation at the end may look at."""
        tokens, params = list(self.prompt), self.params
        for position in range(len(self.prompt), len(self.noise)):
            z = self.live_logits(tokens)
            for token in set(tokens[len(self.prompt) :]):
                count = tokens[len(self.prompt) :].count(token)
                z[token // self.stride] -= params.frequency_penalty * count + params.presence_penalty
            scores = z if params.greedy else z / params.temperature + self.noise[position]
            tokens.append(int(scores.argmax()) * self.stride)  # the first of equals
        return tokens[len(self.prompt) :]

    def row(self, known: Sequence[int], drafted: Speculation, start: int, blocks: Sequence[int]) -> DecodeRow:
        output = History(known, len(self.prompt))
        sampling = SamplingRow(self.params, self.number, len(known), tuple(self.prompt), output)
        tokens = [*known[start:], *drafted.tokens]
        count = len(drafted.tokens)
        return DecodeRow(tokens, start, blocks, True, sampling, num_drafted=count, parents=drafted.parents)

    def speculation(self) -> Speculation:
        """By one of its schedules, or a tree."""
        truth = self.truth()[:LOOKAHEAD]
        if self.random.random() < 0.5:
            return Speculation(tuple(self.random.choice(self.schedule)(self, truth)))
        made = some_speculation(self.random, truth, self.draw_token)
        tokens, parents = cut(made.tokens, made.parents, count=MOST_NODES, depth=LOOKAHEAD)
        return Speculation(tokens, parents=parents)


def hit(case: Case, truth: list[int]) -> list[int]:
    return truth


def miss(case: Case, truth: list[int]) -> list[int]:
    return []


def timeout(case: Case, truth: list[int]) -> list[int]:
    """The path as far as it had come."""
    return truth[: case.random.randrange(LOOKAHEAD)]


def wrong(case: Case, truth: list[int]) -> list[int]:
    """One wrong token; those after it are right again, and must not count."""
    place = case.random.randrange(LOOKAHEAD)
    return [*truth[:place], case.draw_token(), *truth[place + 1 :]]


def backup(case: Case, truth: list[int]) -> list[int]:
    """What followed the latest token when it last occurred."""
    tokens = case.tokens
    found = [i for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]]
    return tokens[found[-1] + 1 :][:LOOKAHEAD] if found else []


def hostile(case: Case, truth: list[int]) -> list[int]:
    return [case.draw_token() for _ in range(case.random.randint(1, LOOKAHEAD))]


def stale(case: Case, truth: list[int]) -> list[int]:
    """The path of an outcome that is one token old."""
    return [case.tokens[-1], *truth][:LOOKAHEAD]


SCHEDULES = (hit, miss, timeout, wrong, backup, hostile, stale)


@contextmanager
def injected_noise(cases: Sequence[Case]) -> Iterator[None]:
    """The sampler's noise, from the tables; the seed of a row is the number of its case."""
    by_number = {case.number: case for case in cases}

    def at(seed: int, position: int) -> Tensor:
        case = by_number[seed]
        return case.spread(case.noise[position], 0.0)

    def whole(seeds: Tensor, positions: Tensor, size: int) -> Tensor:
        return torch.stack([at(*row) for row in zip(seeds.tolist(), positions.tolist(), strict=True)])

    def single(seeds: Tensor, positions: Tensor, owners: Tensor, ids: Tensor) -> Tensor:
        return whole(seeds, positions, 0)[owners, ids]

    with (
        mock.patch("ssd.sampling.whole.noise_of_rows", whole),
        mock.patch("ssd.sampling.pruned.noise_of_tokens", single),
    ):
        yield


class Batch(RowRunner):
    """Cases of one vocabulary that generate side by side, in one forward a round."""

    def __init__(self, number: int, size: int = BATCH) -> None:
        drawn = random.Random(number)
        vocab, stride = drawn.randint(3, 5), FAR_APART if drawn.random() < 0.125 else 1
        self.cases = [Case(number * BATCH + i, vocab, stride) for i in range(size)]
        self.num_rounds = 0
        self.num_trees = 0
        """Rounds in which nodes of one were accepted."""
        self._runners = [TableRunner(case.all_logits) for case in self.cases]
        self._tree_slots = TreeSlots([BESIDE + MOST_NODES * i for i in range(size)], BLOCK_SIZE, self._move)

    def _move(self, sources: Tensor, destinations: Tensor) -> None:
        owners = destinations // (NUM_BLOCKS * BLOCK_SIZE)
        for owner in set(owners.tolist()):
            self._runners[owner].move(sources[owners == owner], destinations[owners == owner])

    def forward(self, rows: Sequence[SequenceInput]) -> Tensor:
        return torch.cat([self._runners[row.blocks[0] // NUM_BLOCKS].forward([row]) for row in rows])

    def num_differences(self) -> int:
        """Cases in which some round decided anything but its definition."""
        differing: set[int] = set()
        with injected_noise(self.cases):
            while going := [
                i for i, case in enumerate(self.cases) if len(case.output) < LENGTH and i not in differing
            ]:
                differing |= self._play_round(going)
        return len(differing)

    def _play_round(self, going: Sequence[int]) -> set[int]:
        drafts, rows = [], []
        for i in going:
            case = self.cases[i]
            drafts.append(case.speculation())
            start = case.num_computed
            rows.append(case.row(case.tokens, drafts[-1], start, range(i * NUM_BLOCKS, (i + 1) * NUM_BLOCKS)))
        differing = set()
        outcomes = verify(self, rows, tree_slots=self._tree_slots)
        self._tree_slots.settle(rows, outcomes)
        self.num_trees += sum(bool(each.branch) for each in outcomes)
        for i, drafted, decided in zip(going, drafts, outcomes, strict=True):
            new = [token.token for token in decided.tokens]
            if new != expected_outcome(drafted, self.cases[i].truth()):
                differing.add(i)
            self.cases[i].take(new)
        self.num_rounds += len(going)
        return differing


def expected_outcome(drafted: Speculation, truth: Sequence[int]) -> list[int]:
    """As much of the truth as some path of the drafted tokens is, and one more token of it."""
    tokens, parents = drafted.tokens, parents_of(drafted.parents, len(drafted.tokens))
    ends: dict[tuple[int, ...], int] = {(): -1}
    for node, parent in enumerate(parents):
        for path in [path for path, end in ends.items() if end == parent]:
            ends.setdefault((*path, tokens[node]), node)  # of twins the first
    accepted = max(count for count in range(len(truth) + 1) if tuple(truth[:count]) in ends)
    return list(truth[: accepted + 1])


def num_differing_outcomes(case: Case) -> tuple[int, int]:
    """Every speculation there is, at every place of the output: how many outcomes differ, and of how many.

    Whatever a schedule does, it does one of these next; so this is every schedule, for one table.
    """
    live = [token * case.stride for token in range(case.vocab)]
    speculations = [
        Speculation(tokens, parents=simplified(parents))
        for count in range(LOOKAHEAD + 1)
        for tokens in itertools.product(live, repeat=count)
        for parents in itertools.product(*(range(-1, node) for node in range(count)))
    ]
    differing = 0
    for place in range(LENGTH):
        truth, known = case.definition[place:], case.prompt + case.definition[:place]
        rows = [case.row(known, drafted, 0, range(NUM_BLOCKS)) for drafted in speculations]
        tree_slots = TreeSlots([BESIDE + LOOKAHEAD * place for place in range(len(rows))])
        with injected_noise([case]):
            outcomes = verify(TableRunner(case.all_logits), rows, tree_slots=tree_slots)
        for drafted, decided in zip(speculations, outcomes, strict=True):
            differing += [each.token for each in decided.tokens] != expected_outcome(drafted, truth)
    return differing, len(speculations) * LENGTH


def main() -> None:
    parser = argparse.ArgumentParser(description="Coupled acceptance against its definition.")
    parser.add_argument("--tables", type=int, default=100_000)
    num_tables = parser.parse_args().tables
    num_differences, num_rounds, start = 0, 0, time.perf_counter()
    for number in range(math.ceil(num_tables / BATCH)):
        batch = Batch(number, min(BATCH, num_tables - number * BATCH))
        num_differences += batch.num_differences()
        num_rounds += batch.num_rounds
    seconds = time.perf_counter() - start
    print(
        f"{num_tables:,} noise tables, {num_rounds:,} rounds, {seconds:.0f} s: {num_differences} differences"
    )


if __name__ == "__main__":
    main()
