"""A sequence as the client knows it: its text, its row of the mirrors, the draft that it is open with.

Knows which of its fields a draft may be sent. Does not know who chooses the draft (router.py).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ssd.draft.client.replica import Replica
from ssd.draft.protocol.messages import MAX_ID, MAX_TOKENS, Open, Sampling, pack_ints
from ssd.draft.protocol.rules import UntellableError, tellable

ROUNDS_BETWEEN_RESYNCS = 4
_MOST_ROUNDS_BETWEEN = 64
UNKNOWN_TOKENS = "it holds tokens the draft does not know"


@dataclass(slots=True)
class ClientSession:
    row: int
    """Of the mirrors, and its name on the wire."""
    tokens: "array[int]"
    """Its text, and behind it what was foretold."""
    num_prompt: int
    sampling: Sampling
    max_len: int
    replica: Replica | None = None
    """The draft that it is open with."""
    declined: "dict[Replica, bool]" = field(default_factory=dict)
    """The drafts that declined it, and whether that was for lack of room."""
    foretold: tuple[int, ...] = ()
    """Tokens at the end that must follow by its grammar, and are not verified yet: the draft knows them."""
    asked_at: int = -ROUNDS_BETWEEN_RESYNCS
    """The round of the last request for the whole tree."""
    draft_name: str = ""
    """The name of the drafts that its request asks for; empty: any."""
    num_begun_again: int = 0
    """Times its present draft missed tokens and was told all of them."""

    @property
    def is_open(self) -> bool:
        return self.replica is not None

    @property
    def room(self) -> int:
        """Drafted tokens that may follow the text: the target adds the last one itself."""
        return max(0, self.max_len - len(self.tokens) + len(self.foretold) - 1)

    def take_decided(self, tokens: Sequence[int]) -> Sequence[int] | None:
        """Adds to the text what was decided; returns what was not foretold. None: it was foretold wrongly."""
        count = min(len(self.foretold), len(tokens))
        if self.foretold[:count] == tuple(tokens[:count]):
            self.foretold, new = self.foretold[count:], tokens[count:]
            self.tokens.extend(new)
            return new
        del self.tokens[len(self.tokens) - len(self.foretold) :]
        self.foretold = ()
        self.tokens.extend(tokens)
        return None

    def may_begin_again(self, num_rounds: int) -> bool:
        """Whether a draft that misses tokens is told all of them, so many outcomes after it was last.

        It cannot miss any before the second. Each time it takes twice as many outcomes until the next.
        """
        if num_rounds < min(2 << self.num_begun_again, _MOST_ROUNDS_BETWEEN):
            return False
        self.num_begun_again += 1
        return True

    def why_not(self, replica: Replica) -> str:
        """Why this draft cannot be told of it; empty: it can."""
        if len(self.tokens) > MAX_TOKENS:
            return "it is too long to be told"
        if len(self.tokens) + 2 > replica.max_model_len:
            # As the draft counts: a node, and the token after it.
            return f"it does not fit into the draft's context of {replica.max_model_len} tokens"
        try:
            tellable(self.sampling, replica.vocab_size)
        except UntellableError as error:
            return str(error)
        return UNKNOWN_TOKENS if largest(self.tokens) >= replica.vocab_size else ""

    def opening(self, replica: Replica, epoch: int, lookahead: int) -> Open:
        return Open(
            seq=self.row,
            epoch=epoch,
            tokens=pack_ints(self.tokens),
            num_prompt=self.num_prompt,
            max_len=min(self.max_len, MAX_ID),
            lookahead=lookahead,
            sampling=tellable(self.sampling, replica.vocab_size),
        )


def largest(tokens: Sequence[int]) -> int:
    """The largest id; where there is a negative one, more than any vocabulary has."""
    if isinstance(tokens, array):
        return int(np.frombuffer(tokens, np.uint32).max())
    return max(tokens) if min(tokens) >= 0 else MAX_ID
