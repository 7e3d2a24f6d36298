"""A sequence as the client knows it: its text, its id on the wire, the draft that it is open with.

Knows which of its fields a draft may be sent. Does not know who chooses the draft (router.py).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ssd.draft.client.replica import Replica
from ssd.draft.protocol.messages import MAX_ID, MAX_TOKENS, Open, Sampling, pack_ints
from ssd.draft.protocol.rules import UnsendableError, sendable

ROUNDS_BETWEEN_RESYNCS = 4
_MOST_ROUNDS_BETWEEN = 64
UNKNOWN_TOKENS = "it holds tokens the draft does not know"


@dataclass(slots=True)
class ClientSession:
    seq: int
    """Its id on the wire and in the mirrors."""
    tokens: "array[int]"
    """Its text, followed by forced tokens that are not verified yet."""
    num_prompt: int
    sampling: Sampling
    max_len: int
    replica: Replica | None = None
    """The draft that it is open with."""
    declined: "dict[Replica, bool]" = field(default_factory=dict)
    """The drafts that declined it, and whether for lack of room."""
    forced: tuple[int, ...] = ()
    """Tokens at the end that its grammar forces; sent to the draft, not verified yet."""
    asked_at: int = -ROUNDS_BETWEEN_RESYNCS
    """The round of the last request for the whole tree."""
    draft_name: str = ""
    """The draft name that its request asks for; empty: any."""
    num_reopened: int = 0
    """Times it was opened again because its draft missed tokens."""

    @property
    def is_open(self) -> bool:
        return self.replica is not None

    @property
    def room(self) -> int:
        """Drafted tokens that may follow the text: the target adds the last one itself."""
        return max(0, self.max_len - len(self.tokens) + len(self.forced) - 1)

    def take_decided(self, tokens: Sequence[int]) -> Sequence[int] | None:
        """Adds the decided tokens to the text; returns those that were not sent yet. None: forced tokens were
        wrong."""
        count = min(len(self.forced), len(tokens))
        if self.forced[:count] == tuple(tokens[:count]):
            self.forced, new = self.forced[count:], tokens[count:]
            self.tokens.extend(new)
            return new
        del self.tokens[len(self.tokens) - len(self.forced) :]
        self.forced = ()
        self.tokens.extend(tokens)
        return None

    def may_reopen(self, num_rounds: int) -> bool:
        """Whether to open it again for a draft that misses tokens, `num_rounds` outcomes after the last
        opening.

        A draft can miss none before the second outcome. The required number doubles each time.
        """
        if num_rounds < min(2 << self.num_reopened, _MOST_ROUNDS_BETWEEN):
            return False
        self.num_reopened += 1
        return True

    def reason_not_to_send(self, replica: Replica) -> str:
        """Why it cannot be opened with this draft; empty: it can."""
        if len(self.tokens) > MAX_TOKENS:
            return "it is too long for a message"
        if len(self.tokens) + 2 > replica.max_model_len:
            # As the draft counts: a node, and the token after it.
            return f"it does not fit into the draft's context of {replica.max_model_len} tokens"
        try:
            sendable(self.sampling, replica.vocab_size)
        except UnsendableError as error:
            return str(error)
        return UNKNOWN_TOKENS if largest(self.tokens) >= replica.vocab_size else ""

    def opening(self, replica: Replica, epoch: int, lookahead: int) -> Open:
        return Open(
            seq=self.seq,
            epoch=epoch,
            tokens=pack_ints(self.tokens),
            num_prompt=self.num_prompt,
            max_len=min(self.max_len, MAX_ID),
            lookahead=lookahead,
            sampling=sendable(self.sampling, replica.vocab_size),
        )


def largest(tokens: Sequence[int]) -> int:
    """The largest id; where there is a negative one, more than any vocabulary has."""
    if isinstance(tokens, array):
        return int(np.frombuffer(tokens, np.uint32).max())
    return max(tokens) if min(tokens) >= 0 else MAX_ID
