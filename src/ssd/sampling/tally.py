"""Counts the tokens of a growing text for penalties.

Counts are updated incrementally: counting a prompt of 30,000 tokens again for every token would be slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ssd.sampling.history import History

Ints = NDArray[np.int64]
_NONE: Ints = np.empty(0, np.int64)


class Tally:
    """The distinct tokens of one sequence's prompt, and the counts of its output tokens."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._ids = self._counts = _NONE
        self._num_counted = 0

    @cached_property
    def prompt_ids(self) -> Ints:
        """Distinct tokens of the prompt, ascending."""
        return np.unique(np.asarray(self._prompt, dtype=np.int64))

    def only_in_prompt(self, output_ids: Ints) -> Ints:
        """Distinct tokens of the prompt that are not among `output_ids`; both ascending."""
        # The output has few distinct tokens: looking them up is faster than sorting both together.
        indices = np.searchsorted(self.prompt_ids, output_ids)
        inside = indices < len(self.prompt_ids)
        indices, output_ids = indices[inside], output_ids[inside]
        return np.delete(self.prompt_ids, indices[self.prompt_ids[indices] == output_ids])

    def output_counts(self, output: History) -> tuple[Ints, Ints]:
        """Distinct tokens of the sequence's output, ascending, and how often each occurs.

        Includes drafted tokens, but does not store their counts, since they may be rejected.
        """
        if output.num_decided < self._num_counted:
            self._ids, self._counts, self._num_counted = _NONE, _NONE, 0
        self._ids, self._counts = _counted(self._ids, self._counts, output.decided_from(self._num_counted))
        self._num_counted = output.num_decided
        return _counted(self._ids, self._counts, output.drafted)


def _counted(ids: Ints, counts: Ints, more: Sequence[int]) -> tuple[Ints, Ints]:
    """Adds tokens to ids and counts."""
    if not len(more):
        return ids, counts
    merged, indices = np.unique(np.concatenate([ids, np.asarray(more, np.int64)]), return_inverse=True)
    times = np.concatenate([counts, np.ones(len(more), np.int64)])
    return merged, np.bincount(indices, times, minlength=len(merged)).astype(np.int64)
