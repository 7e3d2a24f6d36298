"""Computes a draft's guesses for texts that the target wrote.

One forward of the draft over each text gives its likeliest next tokens at every position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssd.attention.inputs import PlainInput
from ssd.bench.bare import MISSED
from ssd.bench.roof import tokens_a_round
from ssd.config import MAX_CHILDREN
from ssd.draft.tree.children import Children, likely_children
from ssd.runtime.loading import LoadedModel
from ssd.runtime.runner import forward
from ssd.sampling import History, SamplingParams, SamplingRow


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt and the target's continuation."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    params: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class Guesses:
    """For each token of each text, its rank among the draft's guesses, from 0, or MISSED."""

    texts: Sequence[Sequence[int]]

    @property
    def acceptance(self) -> float:
        """The share of tokens that are the draft's first guess."""
        ranks = [rank for text in self.texts for rank in text]
        return ranks.count(0) / len(ranks)

    def coverage(self, fan_out: float) -> float:
        """If the first guess is wrong: how often one of the next `fan_out` guesses is right."""
        whole = int(fan_out)
        below, above = self._covered(whole), self._covered(whole + 1)
        return below + (fan_out - whole) * (above - below)

    def _covered(self, count: int) -> float:
        wrong = [rank for text in self.texts for rank in text if rank != 0]
        return sum(1 <= rank <= count for rank in wrong) / len(wrong) if wrong else 1.0

    def tokens_a_round(self, lookahead: int) -> float:
        """Tokens per round if the draft always has a complete speculation ready."""
        agreement = [[rank == 0 for rank in text] for text in self.texts]
        num_rounds = sum(len(each) / tokens_a_round(each, lookahead) for each in agreement)
        return sum(map(len, agreement)) / num_rounds


def guesses_of(draft: LoadedModel, written: Sequence[Written]) -> Guesses:
    return Guesses(
        [
            [
                _rank(children, token)
                for children, token in zip(_children(draft, each), each.tokens, strict=True)
            ]
            for each in written
        ]
    )


def _children(draft: LoadedModel, written: Written) -> list[Children]:
    ids, count = [*written.prompt, *written.tokens], len(written.tokens)
    if len(ids) > draft.max_model_len:
        raise ValueError(
            f"a prompt and its answer have {len(ids)} tokens, the draft takes {draft.max_model_len}: give "
            "shorter prompts, or fewer --max-tokens"
        )
    blocks = list(range(-(-len(ids) // draft.pool.shape.block_size)))
    logits = forward(draft.runner, [PlainInput(ids[:-1], 0, blocks, count, generated=False)])
    rows = [
        SamplingRow(
            params=written.params,
            seed=written.seed,
            position=len(written.prompt) + index,
            prompt=written.prompt,
            output=History(written.tokens[:index]),
        )
        for index in range(count)
    ]
    return likely_children(logits, rows, MAX_CHILDREN, head_tokens=draft.head_tokens)


def _rank(children: Children, token: int) -> int:
    ranks = np.flatnonzero(children.tokens == token)
    return int(ranks[0]) if len(ranks) else MISSED
