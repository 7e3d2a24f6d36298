"""A proposer that knows the truth and offers shapes around it: true paths among wrong ones, twins, cuts."""

import random
from collections.abc import Mapping, Sequence
from functools import partial

from ssd.decoding.proposer import ContextOf, GrammarStates, Proposer
from ssd.decoding.rows import Speculation
from ssd.draft.client.proposals import first_path
from tests.oracle.tree_shapes import some_speculation

Truths = Mapping[tuple[tuple[int, ...], int], Sequence[int]]
"""The tokens that each sequence will get, by its prompt and seed."""


class Hostile(Proposer):
    is_drafting = True

    def __init__(self, truths: Truths, vocab_size: int, *, tree: bool) -> None:
        self._truths, self._vocab_size, self._tree = truths, vocab_size, tree
        self._num_asked = 0

    def propose(
        self, seq_ids: Sequence[int], context_of: ContextOf, states: GrammarStates
    ) -> list[Speculation]:
        return [self._speculation(context_of, seq_id) for seq_id in seq_ids]

    def _speculation(self, context_of: ContextOf, seq_id: int) -> Speculation:
        row = context_of(seq_id).sampling
        truth = self._truths[tuple(row.prompt), row.seed][len(row.output) :]
        self._num_asked += 1
        drawn = random.Random(self._num_asked)
        made = some_speculation(drawn, truth, partial(drawn.randrange, self._vocab_size))
        if self._tree:
            return made
        return Speculation(tuple(first_path(made.tokens, made.parents)))
