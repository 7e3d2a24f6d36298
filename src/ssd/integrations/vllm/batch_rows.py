"""Seed and position of each row of vLLM's batch.

Seeds belong to request ids; positions are vLLM's token counts. While the same requests run, there is no
Python loop over rows, and nothing is read from a device. Knows ids and numbers; needs no vLLM.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ssd.sampling.seeds import seed_of

Longs = NDArray[np.int64]
_SEED_MASK = 2**64 - 1


class InputBatch(Protocol):
    """The part of vLLM's InputBatch that is used here."""

    @property
    def req_ids(self) -> Sequence[str]: ...

    @property
    def num_tokens_no_spec(self) -> NDArray[np.integer]:
        """Number of tokens of each row without drafted ones; the array is longer than the batch."""
        ...


class BatchRows:
    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._seeds: dict[str, int] = {}
        self._ids: list[str] = []
        self._of_ids = np.empty(0, np.int64)
        """Seeds of the requests in `_ids`."""

    def follow(self, scheduled: Any) -> None:
        """Take in the scheduler's output. Finished requests come first, because ids may be reused."""
        for request_id in scheduled.finished_req_ids:
            self._seeds.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            if new.sampling_params is not None:
                self._seeds[new.req_id] = self._seed(new.req_id, new.sampling_params.seed)
                self._ids = []  # The seeds may have changed although the ids have not.

    def seed_of(self, request_id: str) -> int:
        return self._seeds[request_id]

    def decisions(self, batch: InputBatch, num_drafted: Sequence[int] | None = None) -> Longs:
        """Columns [3, N] of owner, position and seed of each row of logits.

        A batch row has one for each drafted token, and one more; without `num_drafted` just that one.
        """
        ids = batch.req_ids
        if ids != self._ids:
            self._ids = list(ids)
            words = [self._seeds.get(each, 0) for each in ids]  # Pooling requests have no seed.
            self._of_ids = np.array(words, dtype=np.uint64).view(np.int64)
        lengths = np.asarray(batch.num_tokens_no_spec[: len(ids)], dtype=np.int64)
        owners = np.arange(len(ids))
        if num_drafted is None:
            return np.stack((owners, lengths, self._of_ids))
        counts = np.asarray(num_drafted, dtype=np.int64) + 1
        owners = np.repeat(owners, counts)
        ahead = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.stack((owners, lengths[owners] + ahead, self._of_ids[owners]))

    def _seed(self, request_id: str, brought: int | None) -> int:
        """The request's own seed, or one derived from its id, which is the same on every rank."""
        return seed_of(request_id, self._salt) if brought is None else brought & _SEED_MASK
