"""A draft model in the same process: drafts the next tokens of a batch of sequences.

Knows the draft's own KV blocks and how much of each sequence it has computed. It uses the sequence's sampling
parameters, seed and noise, so that drafted tokens equal the target's as often as possible. Declines a
sequence for which it has no blocks; that one continues without a draft. Drafted tokens satisfy the request's
grammar; tokens that the grammar forces need no forward.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_parameters

import numpy as np
from msgspec.structs import replace
from torch import Tensor

from ssd.attention.inputs import PlainInput
from ssd.decoding.rows import DraftContext, Speculation
from ssd.draft.client.proposals import DraftedTokens, simplified
from ssd.draft.tree.children import Children, likely_children
from ssd.kvcache.block_manager import BlockManager, OutOfBlocks
from ssd.models.head_tokens import whole_vocabulary
from ssd.runtime.runner import Runner, forward
from ssd.sampling import SamplingRow, sample
from ssd.sampling.constraint import GrammarState

_NO_STATES: Mapping[int, GrammarState] = {}
_NUM_OTHERS = 3
"""Alternatives beside each drafted token: the default of a draft that works ahead."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    lookahead: int
    max_model_len: int
    """The draft's longest sequence; a longer one is declined."""
    max_num_batched_tokens: int
    vocab_size: int
    """The smaller of the two vocabularies: ids beyond it are padding and never drafted."""


@dataclass(slots=True)
class _Guess:
    """A sequence while its tokens are drafted."""

    context: DraftContext
    most: int
    """The most tokens to draft: the target decides the last token of a text itself."""
    state: GrammarState | None
    """The grammar state after the drafted tokens; None: no grammar."""
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Drafted tokens whose keys the draft has computed."""
    chances: list[float] = field(default_factory=list)
    """The probability that the text contains each drafted token; only for trees."""
    others: list[tuple[float, int, int]] = field(default_factory=list)
    """Alternatives to drafted tokens: probability, index of the drafted token, alternative token."""

    def known(self) -> list[int]:
        return [*self.context.sampling.prompt, *self.context.sampling.output]

    def sampling(self) -> SamplingRow:
        known = self.context.sampling
        position = known.position + len(self.tokens)
        allowed = None if self.state is None else self.state.mask()
        output = known.output.followed_by(self.tokens)
        return replace(known, position=position, output=output, allowed=allowed)

    def add(self, token: int) -> None:
        self.tokens.append(token)
        if self.state is not None:
            self.state = self.state.after(token) if self.state.allows(token) else None

    def add_likeliest(self, children: Children) -> None:
        """Adds the likeliest child, and keeps the others as alternatives."""
        allowed = children.raws > -math.inf
        tokens, shares = children.tokens[allowed].tolist(), np.exp(children.raws[allowed]).tolist()
        if not tokens:
            self.end()
            return
        chance = self.chances[-1] if self.chances else 1.0
        pairs = zip(tokens[1:], shares[1:], strict=True)
        self.others += [(chance * share, len(self.tokens), token) for token, share in pairs]
        self.chances.append(chance * shares[0])
        self.add(tokens[0])

    def tree(self) -> DraftedTokens:
        """The drafted tokens and their alternatives as a tree, in order of falling probability."""
        pairs = zip(self.chances, self.tokens, strict=True)
        nodes = [(-chance, place, 0, token) for place, (chance, token) in enumerate(pairs)]
        nodes += [(-chance, place, 1, token) for chance, place, token in self.others]
        nodes.sort()
        at = {place: i for i, (_chance, place, is_other, _token) in enumerate(nodes) if not is_other}
        parents = [at[place - 1] if place else -1 for _chance, place, _is_other, _token in nodes]
        return DraftedTokens([each[3] for each in nodes], [-each[0] for each in nodes], simplified(parents))

    def end(self) -> None:
        """Stops drafting: the draft has no token that the grammar allows."""
        self.most = len(self.tokens)

    def add_forced(self) -> None:
        """Adds the tokens that the grammar forces."""
        while not self.is_over() and self.state is not None and (only := self.state.only()) is not None:
            self.chances.append(self.chances[-1] if self.chances else 1.0)
            self.add(only)

    def take_unread(self) -> list[int]:
        unread, self.num_computed = self.tokens[self.num_computed :], len(self.tokens)
        return unread

    def is_over(self) -> bool:
        """Whether enough tokens are drafted; none is drafted after an end token."""
        ends = bool(self.tokens) and self.tokens[-1] in self.context.sampling.end_ids
        return ends or len(self.tokens) >= self.most


class Drafter:
    def __init__(
        self,
        runner: Runner,
        block_manager: BlockManager,
        limits: DraftLimits,
        *,
        head_tokens: Tensor | None = None,
    ) -> None:
        self._runner = runner
        self._head_tokens = head_tokens
        self._blocks = block_manager
        self._limits = limits
        self._num_others = 0
        """Alternatives beside each token, in the current call of `_guess`."""
        self._read: dict[int, list[int]] = {}
        """The tokens of each sequence whose keys and values are in its blocks."""
        self.has_read_texts = False
        """For the latest proposals more tokens were computed than a verification adds, such as a prompt."""

    def propose(
        self,
        contexts: Sequence[DraftContext],
        lengths: Sequence[int] | None = None,
        states: Mapping[int, GrammarState] = _NO_STATES,
    ) -> list[Speculation]:
        """Drafts a path for each sequence.

        `lengths`: the most tokens for each; None: the lookahead for all. `states`: grammar states of the
        sequences that have a grammar.
        """
        guesses = self._guess(contexts, lengths, states, num_others=0)
        return [Speculation() if guess is None else Speculation(tuple(guess.tokens)) for guess in guesses]

    def propose_trees(
        self,
        contexts: Sequence[DraftContext],
        lengths: Sequence[int],
        states: Mapping[int, GrammarState] = _NO_STATES,
    ) -> list[DraftedTokens]:
        """Drafts a tree for each sequence: a path, and alternatives that need no further forward."""
        guesses = self._guess(contexts, lengths, states, num_others=_NUM_OTHERS)
        return [DraftedTokens() if guess is None else guess.tree() for guess in guesses]

    def _guess(
        self,
        contexts: Sequence[DraftContext],
        lengths: Sequence[int] | None,
        states: Mapping[int, GrammarState],
        *,
        num_others: int,
    ) -> list[_Guess | None]:
        self._num_others = num_others
        wanted = [self._limits.lookahead] * len(contexts) if lengths is None else lengths
        begun = (
            _Guess(_unscored(context), min(length, self.room(context)), states.get(context.seq_id))
            for context, length in zip(contexts, wanted, strict=True)
        )
        guesses = {
            each.context.seq_id: each for each in begun if each.most > 0 and self._prepare(each.context)
        }
        for guess in guesses.values():
            guess.add_forced()
        self._catch_up([guess for guess in guesses.values() if not guess.is_over()])
        while growing := [guess for guess in guesses.values() if not guess.is_over()]:
            self._extend(growing, [guess.take_unread() for guess in growing])
        return [guesses.get(each.seq_id) for each in contexts]

    def forget(self, seq_id: int) -> None:
        if self._read.pop(seq_id, None) is not None:
            self._blocks.free(seq_id)

    def check_integrity(self) -> None:
        self._blocks.check_integrity()
        if set(self._blocks.seq_ids) != set(self._read):
            raise RuntimeError("the draft holds blocks of sequences it does not know")

    def room(self, context: DraftContext) -> int:
        """The most tokens that may be drafted."""
        return max(0, min(self._limits.lookahead, context.max_len - context.sampling.position - 1))

    def _prepare(self, context: DraftContext) -> bool:
        """Allocates blocks for known and drafted tokens. False: the sequence is declined."""
        known = [*context.sampling.prompt, *context.sampling.output]
        needed = len(known) + self._limits.lookahead
        if needed > self._limits.max_model_len:
            self.forget(context.seq_id)
            return False
        try:
            if context.seq_id not in self._read:
                self._blocks.allocate(context.seq_id, known)
                self._read[context.seq_id] = []
            self._blocks.grow(context.seq_id, needed)
        except OutOfBlocks:
            self.forget(context.seq_id)
            return False
        # Keys of rejected tokens are overwritten. The last known token is always computed again, for its
        # logits.
        read = self._read[context.seq_id]
        del read[min(self._num_confirmed(read, known), len(known) - 1) :]
        return True

    def _catch_up(self, guesses: Sequence[_Guess]) -> None:
        """Computes the sequences' new tokens, within a forward's budget, and drafts their first tokens."""
        group: list[_Guess] = []
        unread: list[list[int]] = []
        budget = self._limits.max_num_batched_tokens
        self.has_read_texts = False
        for guess in guesses:
            tokens = guess.known()[len(self._read[guess.context.seq_id]) :]
            self.has_read_texts |= len(tokens) > self._limits.lookahead + 1
            tokens += guess.take_unread()
            while len(tokens) > budget:
                self._forward([guess], [tokens[:budget]], num_logits=0)
                tokens = tokens[budget:]
            if group and sum(map(len, unread)) + len(tokens) > budget:
                self._extend(group, unread)
                group, unread = [], []
            group.append(guess)
            unread.append(tokens)
        if group:
            self._extend(group, unread)

    def _extend(self, guesses: Sequence[_Guess], unread: Sequence[Sequence[int]]) -> None:
        """Runs one forward and adds the draft's next token to each sequence."""
        logits = self._forward(guesses, unread, num_logits=1)
        if self._head_tokens is not None:
            logits = whole_vocabulary(logits, self._head_tokens)
        logits = logits[:, : self._limits.vocab_size]
        rows = [guess.sampling() for guess in guesses]
        if self._num_others:
            for guess, children in zip(
                guesses, likely_children(logits, rows, 1 + self._num_others), strict=True
            ):
                guess.add_likeliest(children)
        else:
            for guess, token in zip(guesses, sample(logits, rows), strict=True):
                guess.end() if token.is_void else guess.add(token.token)
        for guess in guesses:
            guess.add_forced()

    def _forward(
        self, guesses: Sequence[_Guess], unread: Sequence[Sequence[int]], *, num_logits: int
    ) -> Tensor:
        rows = []
        for guess, tokens in zip(guesses, unread, strict=True):
            seq_id, read = guess.context.seq_id, self._read[guess.context.seq_id]
            blocks = self._blocks.block_table(seq_id)
            rows.append(PlainInput(tokens, len(read), blocks, num_logits, generated=True))
            read.extend(tokens)
        return forward(self._runner, rows)

    def _num_confirmed(self, read: Sequence[int], known: Sequence[int]) -> int:
        """How many of the computed tokens are the sequence's; only the latest may be rejected drafts."""
        length = max(0, len(read) - self._limits.lookahead)
        while length < min(len(read), len(known)) and read[length] == known[length]:
            length += 1
        return length


def _unscored(context: DraftContext) -> DraftContext:
    """Without log-probabilities: nobody needs those of drafted tokens."""
    row = context.sampling
    if row.params.logprobs is None:
        return context
    return replace(context, sampling=replace(row, params=with_parameters(row.params, logprobs=None)))
