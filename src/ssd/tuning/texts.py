"""What a draft would have guessed for texts that the target wrote.

One forward of the draft over each text tells, at every place, its likeliest next tokens and which of them
the target took.
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
    """A prompt and what the target wrote after it."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    params: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class Guesses:
    """Of texts, token by token: its rank among the draft's guesses, from 0, or MISSED."""

    texts: Sequence[Sequence[int]]

    @property
    def acceptance(self) -> float:
        """How often the first guess is right."""
        ranks = [rank for text in self.texts for rank in text]
        return ranks.count(0) / len(ranks)

    def coverage(self, fan_out: float) -> float:
        """Where the first guess is wrong: how often one of the next `fan_out` is right."""
        whole = int(fan_out)
        below, above = self._covered(whole), self._covered(whole + 1)
        return below + (fan_out - whole) * (above - below)

    def _covered(self, count: int) -> float:
        wrong = [rank for text in self.texts for rank in text if rank != 0]
        return sum(1 <= rank <= count for rank in wrong) / len(wrong) if wrong else 1.0

    def tokens_a_round(self, lookahead: int) -> float:
        """With a draft that has a whole speculation ready whenever a round begins."""
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
            position=len(written.prompt) + place,
            prompt=written.prompt,
            output=History(written.tokens[:place]),
        )
        for place in range(count)
    ]
    return likely_children(logits, rows, MAX_CHILDREN, head_tokens=draft.head_tokens)


def _rank(children: Children, token: int) -> int:
    found = np.flatnonzero(children.tokens == token)
    return int(found[0]) if len(found) else MISSED
