"""The oracle of ratio acceptance: all paths under all schedules give AR's joint law, on small vocabularies.

A schedule decides, token by token, whether a speculation goes on. It may know every token of the sequence and
of the speculation so far. There are too many such schedules to list, but not to bound: an `Adversary` chooses
at every such point, once to make an output as likely as it can be and once as unlikely. If both come to AR's
probability, for every output, no schedule does otherwise. It may also put in guesses without a q, whichever
tokens it likes.

`full_law` plays whole generations instead, with the real drafter, under schedules of fixed lengths.

    python -m tests.oracle.ratio         runs it at full size and prints what it found
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.decoding.drafter import Drafter, DraftLimits, RatioDrafting
from ssd.decoding.rows import DecodeRow, DraftContext
from ssd.decoding.verification import verify
from ssd.kvcache.block_manager import BlockManager
from ssd.sampling import Chooser, DraftDistribution, History, Proposal, SamplingParams, SamplingRow
from ssd.sampling.ratio import certain, draft_distribution, propose, saguaro
from tests.oracle.enumeration import Law, Result, law_of
from tests.oracle.table_runner import BLOCK_SIZE, TableRunner
from tests.sampling.reference import reference_process, softmax

Tokens = tuple[int, ...]
Vector = NDArray[np.float64]
Draft = Callable[["Game", Tokens, Chooser], Proposal]

PROMPT: Tokens = (1, 0)
# Halves and powers of two, so that float32 and the float64 reference hold the same numbers.
LOGITS = (-8.0, -1.0, 0.0, 0.5, 1.0, 2.0)
PARAMS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5, frequency_penalty=0.5, presence_penalty=0.25),
    SamplingParams(temperature=2.0, top_k=2),
    SamplingParams(temperature=1.0, top_p=0.75, logit_bias={1: 0.5}),
    SamplingParams(temperature=0.0),
)


@dataclass(frozen=True)
class Game:
    """A target and a draft over a small vocabulary, and how many tokens they are to generate."""

    params: SamplingParams
    vocab: int = 3
    length: int = 3
    lookahead: int = 3
    number: int = 0
    draft: Draft = field(default=lambda game, tokens, chooser: honest(game, tokens, chooser))

    def target_logits(self, tokens: Tokens) -> Tensor:
        return _logits("target", self.number, self.vocab, tokens)

    def draft_logits(self, tokens: Tokens) -> Tensor:
        return _logits("draft", self.number, self.vocab, tokens)

    def row(self, tokens: Tokens) -> SamplingRow:
        return SamplingRow(self.params, 7, len(tokens), PROMPT, History(tokens, len(PROMPT)))

    def outputs(self) -> list[Tokens]:
        return list(itertools.product(range(self.vocab), repeat=self.length))

    @cached_property
    def expected(self) -> Vector:
        """AR's joint law, from the float64 reference of the processors."""
        return np.array([self._joint(output) for output in self.outputs()])

    def _joint(self, output: Tokens) -> float:
        probability = 1.0
        for count, token in enumerate(output):
            tokens = PROMPT + output[:count]
            scores = reference_process(self.target_logits(tokens).double().numpy(), self.row(tokens))[0]
            sure = self.params.greedy
            probability *= float(token == scores.argmax()) if sure else float(softmax(scores)[token])
        return probability


@lru_cache(maxsize=10_000)
def _logits(model: str, number: int, vocab: int, tokens: Tokens) -> Tensor:
    drawn = random.Random(repr((model, number, tokens)))
    return torch.tensor([drawn.choice(LOGITS) for _ in range(vocab)])


def honest(game: Game, tokens: Tokens, chooser: Chooser) -> Proposal:
    """Its model's distribution, as the in-process draft has it."""
    return propose(draft_distribution(game.draft_logits(tokens), game.row(tokens)), chooser, len(tokens))


def narrow(game: Game, tokens: Tokens, chooser: Chooser) -> Proposal:
    """Cut to its two likeliest tokens: the others have no q."""
    q = draft_distribution(game.draft_logits(tokens), game.row(tokens), max_tokens=2)
    return propose(q, chooser, len(tokens))


def light(game: Game, tokens: Tokens, chooser: Chooser) -> Proposal:
    """Saguaro sampling."""
    q = draft_distribution(game.draft_logits(tokens), game.row(tokens))
    return propose(saguaro(q, 1, 0.3), chooser, len(tokens))


def arbitrary(game: Game, tokens: Tokens, chooser: Chooser) -> Proposal:
    """Any weights at all: zeros, the smallest that float32 holds, and sums far from 1."""
    drawn = random.Random(repr((game.number, tokens)))
    weights = [drawn.choice((0.0, 1e-30, 0.1, 1 / 3, 1.0, 7.0)) for _ in range(game.vocab)]
    weights[drawn.randrange(game.vocab)] = 0.7
    held = [token for token, weight in enumerate(weights) if weight]
    held.sort(key=lambda token: -weights[token])
    q = DraftDistribution(np.array(held, np.int32), np.array([weights[t] for t in held], np.float32))
    return propose(q, chooser, len(tokens))


def perfect(game: Game, tokens: Tokens, chooser: Chooser) -> Proposal:
    """The target's own distribution."""
    return propose(draft_distribution(game.target_logits(tokens), game.row(tokens)), chooser, len(tokens))


HONEST: tuple[Draft, ...] = (honest, narrow, light, arbitrary, perfect)


def check_round(game: Game, tokens: Tokens, proposals: Sequence[Proposal], chooser: Chooser) -> Tokens:
    """The new tokens of one verification by the production code."""
    drafted = [proposal.token for proposal in proposals]
    blocks = range(len(tokens) + len(drafted))
    row = DecodeRow(
        [*tokens, *drafted], 0, blocks, True, game.row(tokens),
        num_drafted=len(drafted), acceptance="ratio", proposals=proposals,
    )  # fmt: skip
    [decided] = verify(TableRunner(game.target_logits), [row], lambda seed: chooser)
    return tuple(token.token for token in decided.tokens)


@dataclass
class Adversary:
    """Chooses schedules: the least and the greatest probability that any of them can give each output."""

    game: Game
    guessing: bool = False
    """Puts in guesses without a q as well."""
    peeking: bool = False
    """Looks at the token being cut, which no schedule may."""
    num_paths: int = 0
    _known: dict[Hashable, Vector] = field(default_factory=dict)

    def deviation(self) -> float:
        """How far from AR's law the output can be brought."""
        return float(np.abs(self._bounds((), ()) - self.game.expected).max())

    def _bounds(self, output: Tokens, speculation: tuple[Proposal, ...]) -> Vector:
        """[2, outputs]: least and greatest, from where `output` is known and `speculation` is drafted."""
        if len(output) >= self.game.length:
            reached = output[: self.game.length]
            return np.array([[float(each == reached) for each in self.game.outputs()]] * 2)
        key = (output, tuple((each.token, each.probability) for each in speculation))
        if key not in self._known:
            options = np.array(self._options(output, speculation))
            self._known[key] = np.stack([options[:, 0].min(0), options[:, 1].max(0)])
        return self._known[key]

    def _options(self, output: Tokens, speculation: tuple[Proposal, ...]) -> list[Vector]:
        """What can be brought about: have this speculation checked, or go on with it."""
        game = self.game
        outcomes = self._law(lambda chooser: check_round(game, PROMPT + output, speculation, chooser))
        checked = _mean((chance, self._bounds(output + new, ())) for new, chance in outcomes.items())
        path = output + tuple(each.token for each in speculation)
        if len(speculation) == game.lookahead or len(path) >= game.length:
            return [checked]
        drawn = self._law(lambda chooser: game.draft(game, PROMPT + path, chooser))
        longer = [(chance, self._bounds(output, (*speculation, each))) for each, chance in drawn.items()]
        options = [checked, _mean(longer)]
        if self.peeking:
            options.append(_mean((chance, _better(kept, checked)) for chance, kept in longer))
        if self.guessing:
            guesses = [certain(token) for token in range(game.vocab)]
            options += [self._bounds(output, (*speculation, guess)) for guess in guesses]
        return options

    def _law(self, program: Callable[[Chooser], Result]) -> dict[Result, float]:
        law = law_of(program)
        self.num_paths += law.num_paths
        return law.probabilities


def full_law(game: Game, lengths: Sequence[int], ratio: RatioDrafting) -> Law[Tokens]:
    """Whole generations with the real drafter; the n-th round has a speculation of at most lengths[n]."""
    return law_of(lambda chooser: _generate(game, lengths, replace(ratio, chooser_of=lambda seed: chooser)))


def _generate(game: Game, lengths: Sequence[int], ratio: RatioDrafting) -> Tokens:
    target = TableRunner(game.target_logits)
    limits = DraftLimits(max(*lengths, 1), 64, 64, game.vocab)
    drafter = Drafter(
        TableRunner(game.draft_logits),
        BlockManager(16, BLOCK_SIZE, enable_prefix_caching=False),
        limits,
        ratio=ratio,
    )
    tokens: Tokens = PROMPT
    num_computed = 0
    for length in lengths:
        row = game.row(tokens)
        [speculation] = drafter.propose([DraftContext(0, row)])
        drafted = speculation.tokens[:length]
        decode = DecodeRow(
            [*tokens[num_computed:], *drafted], num_computed, range(16), True, row,
            num_drafted=len(drafted), acceptance="ratio", proposals=speculation.first_proposals(length),
        )  # fmt: skip
        [decided] = verify(target, [decode], ratio.chooser_of)
        num_computed = len(tokens) + len(decided.tokens) - 1
        tokens += tuple(token.token for token in decided.tokens)
        if len(tokens) >= len(PROMPT) + game.length:
            break
    return tokens[len(PROMPT) : len(PROMPT) + game.length]


def full_deviation(game: Game, law: Law[Tokens]) -> float:
    found = np.array([law.probabilities.get(output, 0.0) for output in game.outputs()])
    return float(np.abs(found - game.expected).max())


def _mean(cases: Iterable[tuple[float, Vector]]) -> Vector:
    total: Vector = np.sum([chance * bounds for chance, bounds in cases], axis=0)
    return total


def _better(one: Vector, other: Vector) -> Vector:
    """The better of two choices, for each output and each of the two aims."""
    return np.stack([np.minimum(one[0], other[0]), np.maximum(one[1], other[1])])


def main() -> None:
    """Every kind of draft under every parameter set, at sizes that CI leaves out."""
    worst, num_paths, start = 0.0, 0, time.perf_counter()
    for number, (params, draft) in enumerate(itertools.product(PARAMS, HONEST)):
        for vocab, length in ((3, 4), (4, 3), (5, 3)):
            adversary = Adversary(Game(params, vocab, length, 3, number, draft), guessing=vocab == 3)
            worst = max(worst, adversary.deviation())
            num_paths += adversary.num_paths
        print(f"{draft.__name__:>9}: {num_paths:,} paths, largest deviation {worst:.1e}", flush=True)
    print(f"every schedule: {num_paths:,} paths, {worst:.1e}, {time.perf_counter() - start:.0f} s")
    game, num_paths, worst = Game(PARAMS[1], number=1), 0, 0.0
    for lengths in itertools.product(range(3), repeat=3):
        law = full_law(game, lengths, RatioDrafting())
        worst, num_paths = max(worst, full_deviation(game, law)), num_paths + law.num_paths
    print(f"whole generations: {num_paths:,} paths, {worst:.1e}, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
