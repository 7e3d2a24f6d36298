"""One sequence: its tokens, and how many have computed keys and values.

Does not know sampling, text or blocks. Only the scheduler changes its progress; the engine offers drafted
tokens before a step.
"""

from collections.abc import Iterable
from enum import Enum
from itertools import count

_next_seq_id = count().__next__


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    __slots__ = (
        "arrival",
        "cache_key",
        "drafted",
        "group",
        "index",
        "max_tokens",
        "num_cached",
        "num_computed",
        "num_preemptions",
        "num_prompt",
        "parent_id",
        "parents",
        "request_id",
        "seq_id",
        "status",
        "tokens",
        "wants_prompt_logits",
    )

    def __init__(
        self,
        request_id: str,
        prompt: Iterable[int],
        *,
        max_tokens: int,
        index: int = 0,
        parent_id: int | None = None,
        group: str = "",
        wants_prompt_logits: bool = False,
        cache_key: str = "",
    ) -> None:
        # Only assigned here, so an id is never reused: a late message cannot concern another sequence.
        self.seq_id = _next_seq_id()
        self.request_id = request_id
        self.index = index  # which of the n sequences of its request
        self.parent_id = parent_id  # the sequence whose prompt blocks it may share
        self.group = group or request_id  # shared by requests that one caller sent together
        self.tokens = list(prompt)  # known tokens: the prompt, then what has been generated
        self.num_prompt = len(self.tokens)
        self.max_tokens = max_tokens
        self.wants_prompt_logits = wants_prompt_logits  # while True, no cached prefix is used
        self.cache_key = cache_key
        self.status = SequenceStatus.WAITING
        self.arrival = -1  # set by the scheduler when the sequence is added
        self.num_computed = 0  # leading tokens whose keys and values are in its blocks
        self.num_cached = 0  # leading tokens that its first admission found computed
        self.num_preemptions = 0
        self.drafted: tuple[int, ...] = ()  # proposed to follow `tokens`; checked in the next step
        self.parents: tuple[int, ...] | None = None  # of each drafted token, an index or -1; None: a chain

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.num_prompt]

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def is_decoding(self) -> bool:
        """Only its newest token is left to compute, and that token was generated."""
        return self.num_prompt <= self.num_computed == len(self.tokens) - 1

    def offer(self, drafted: tuple[int, ...] = (), parents: tuple[int, ...] | None = None) -> None:
        """Sets the drafted tokens that the next step verifies."""
        self.drafted, self.parents = drafted, parents

    def num_remaining(self, max_model_len: int) -> int:
        """How many tokens may still be generated. At 0 the engine finishes the sequence."""
        return min(self.num_prompt + self.max_tokens, max_model_len) - len(self.tokens)

    def __repr__(self) -> str:
        progress = f"{self.num_computed}/{self.num_prompt}+{self.num_generated}"
        return f"Sequence({self.seq_id}, {self.request_id!r}[{self.index}], {self.status.value}, {progress})"
