"""Data of scheduling: the limits, the rows of a step, and the check of a row's outcome.

Scheduling decisions are in scheduler.py.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import NamedTuple

from ssd.draft.client.proposals import depths_of, has_path
from ssd.engine.sequence import Sequence, SequenceStatus
from ssd.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    # False in deterministic mode, where a token's keys depend on whether it was prompt or generated. Then
    # only prompt blocks are shared, and only as prompts: a prompt's blocks cannot replace generated ones.
    cache_generated: bool = True

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_model_len < 2:
            raise ValueError("max_num_seqs must be at least 1 and max_model_len at least 2")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}): raise it, so that every decoding sequence fits into a step"
            )

    def check_admissible(self, sequence: Sequence, *, num_slots: int) -> None:
        """Refuse a sequence that could not run to its end alone in a KV cache of num_slots tokens."""
        if not sequence.num_prompt:
            raise InvalidRequestError("the prompt is empty: pass at least one token, for example BOS")
        if sequence.num_prompt >= self.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {sequence.num_prompt} tokens and max_model_len is {self.max_model_len}: "
                "shorten the prompt or raise max_model_len"
            )
        if sequence.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens is {sequence.max_tokens}: ask for at least 1")
        num_final = min(sequence.num_prompt + sequence.max_tokens, self.max_model_len)
        if num_final > num_slots:
            raise InvalidRequestError(
                f"prompt and max_tokens come to {num_final} tokens and the KV cache holds {num_slots}: "
                "lower max_tokens, shorten the prompt or give the KV cache more memory"
            )


class ScheduledRow(NamedTuple):
    sequence: Sequence
    start: int  # position of the first query token
    tokens: tuple[int, ...]  # known tokens, then drafted ones
    num_known: int
    samples: bool  # reaches the end of the known tokens: the logits from there on decide new tokens
    generated: bool  # True: generated and drafted tokens; False: prompt tokens. Never both
    parents: tuple[int, ...] | None = None  # index of each drafted token's predecessor, or -1; None: a chain

    @property
    def num_drafted(self) -> int:
        return len(self.tokens) - self.num_known

    @property
    def drafted(self) -> tuple[int, ...]:
        return self.tokens[self.num_known :]

    @property
    def depth(self) -> int:
        """Positions that its drafted tokens take: of a tree, the length of its longest path."""
        return max(depths_of(self.parents, self.num_drafted), default=0)

    def with_drafts(self, drafted: tuple[int, ...], parents: tuple[int, ...] | None) -> "ScheduledRow":
        """The same row with other drafted tokens."""
        return self._replace(tokens=self.tokens[: self.num_known] + drafted, parents=parents)

    def check_outcome(self, new_tokens: Tokens[int], max_model_len: int) -> None:
        """ValueError if the outcome does not follow from this row, or exceeds the sequence's length."""
        sequence, num_new = self.sequence, len(new_tokens)
        if self.start != sequence.num_computed or sequence.status is not SequenceStatus.RUNNING:
            raise ValueError(f"the row at {self.start} of {sequence} is not from the latest schedule")
        if not self.samples:
            if num_new:
                raise ValueError(f"{num_new} new tokens for a row that does not sample")
            return
        if not 1 <= num_new <= self.num_drafted + 1:
            raise ValueError(
                f"{num_new} new tokens for {self.num_drafted} drafted ones: expected one more at most"
            )
        if not has_path(self.drafted, self.parents, new_tokens[:-1]):
            raise ValueError("the new tokens before the last one are not the drafted ones")
        if num_new > sequence.num_remaining(max_model_len):
            raise ValueError(f"{sequence} is past its end: finish a sequence when none of its tokens remain")


class Schedule(NamedTuple):
    rows: tuple[ScheduledRow, ...]
    preempted: tuple[Sequence, ...]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows if not row.generated)

    @property
    def num_further(self) -> int:
        """Rows beyond the first of each group."""
        return len(self.rows) - len({row.sequence.group for row in self.rows})


@dataclass(slots=True)
class RowsToBe:
    """The rows of a step while the scheduler builds it."""

    rows: list[ScheduledRow]
    budget: int  # query tokens that still fit
    most: int  # the initial budget
    may_run_alone: bool  # whether a prompt that does not fit beside `rows` may replace them
    num_unfinished: int = 0  # prompts of which this step computes only a part

    def share_of(self, num_wanted: int) -> int:
        """Tokens for the next prompt: all it wants if they fit, else a quarter, to leave room for others."""
        return num_wanted if num_wanted <= self.budget else (self.budget + 3) // 4
