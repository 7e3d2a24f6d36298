"""How often each token was written so far, kept as a text grows: what penalties ask for at every position.

Without it, a prompt of 30,000 tokens would be gone through again for every token that follows it.
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
    """Of one sequence: the distinct tokens of its prompt, and the counts of its output."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._ids = self._counts = _NONE
        self._num_counted = 0

    @cached_property
    def prompt_ids(self) -> Ints:
        """Distinct tokens of the prompt, ascending."""
        return np.unique(np.asarray(self._prompt, dtype=np.int64))

    def only_in_prompt(self, written: Ints) -> Ints:
        """Distinct tokens of the prompt that are not among some others, ascending both."""
        places = np.searchsorted(self.prompt_ids, written)
        # A few are looked up in many; sorting both together would take as long as the prompt is.
        inside = places < len(self.prompt_ids)
        places, written = places[inside], written[inside]
        return np.delete(self.prompt_ids, places[self.prompt_ids[places] == written])

    def written(self, output: History) -> tuple[Ints, Ints]:
        """Distinct tokens of the sequence's output, ascending, and how often each occurs.

        Drafted tokens may never have been: they are counted in this answer, and not kept.
        """
        if output.num_decided < self._num_counted:
            self._ids, self._counts, self._num_counted = _NONE, _NONE, 0
        self._ids, self._counts = _counted(self._ids, self._counts, output.decided_from(self._num_counted))
        self._num_counted = output.num_decided
        return _counted(self._ids, self._counts, output.drafted)


def _counted(ids: Ints, counts: Ints, more: Sequence[int]) -> tuple[Ints, Ints]:
    """Ids and counts with some more tokens."""
    if not len(more):
        return ids, counts
    merged, places = np.unique(np.concatenate([ids, np.asarray(more, np.int64)]), return_inverse=True)
    times = np.concatenate([counts, np.ones(len(more), np.int64)])
    return merged, np.bincount(places, times, minlength=len(merged)).astype(np.int64)
