"""Of each row of vLLM's batch: the seed it draws with and the position it decides next.

Seeds go by request id, positions are vLLM's own count of tokens. While the same requests run, nothing is done
row by row in Python, and nothing is read from a device. Knows ids and numbers; needs no vLLM.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ssd.sampling.seeds import seed_of

Longs = NDArray[np.int64]
_SEED_MASK = 2**64 - 1


class InputBatch(Protocol):
    """vLLM's InputBatch, as far as it matters here."""

    @property
    def req_ids(self) -> Sequence[str]: ...

    @property
    def num_tokens_no_spec(self) -> NDArray[np.integer]:
        """Tokens of each row's text, drafted ones left out; longer than there are rows."""
        ...


class BatchRows:
    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._seeds: dict[str, int] = {}
        self._ids: list[str] = []
        self._of_ids = np.empty(0, np.int64)
        """Seeds of the batch that `_ids` names."""

    def follow(self, scheduled: Any) -> None:
        """What the scheduler says before a forward; those who are gone come first, for ids may come again."""
        for request_id in scheduled.finished_req_ids:
            self._seeds.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            if new.sampling_params is not None:
                self._seeds[new.req_id] = self._seed(new.req_id, new.sampling_params.seed)
                self._ids = []  # Other seeds, even where the ids are the same.

    def seed_of(self, request_id: str) -> int:
        return self._seeds[request_id]

    def decisions(self, batch: InputBatch, num_drafted: Sequence[int] | None = None) -> Longs:
        """Columns [3, N] of owner, position and seed of each row of logits.

        A batch row has one for each drafted token, and one more; without `num_drafted` just that one.
        """
        ids = batch.req_ids
        if ids != self._ids:
            self._ids = list(ids)
            words = [self._seeds.get(each, 0) for each in ids]  # None has a request that only pools.
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
        """Its own, or one that every rank makes alike from its id."""
        return seed_of(request_id, self._salt) if brought is None else brought & _SEED_MASK
