"""The leader's side of a model over several ranks: what it does to its memory, the others do to theirs."""

from torch import Tensor

from ssd.attention.batch import Batch
from ssd.kvcache.pool import KVPool
from ssd.runtime.ranks.group import Ranks
from ssd.runtime.ranks.wire import Order, batch_said, said


class LeadingPool(KVPool):
    """Its own share of keys and values; slots are moved on every rank."""

    def __init__(self, pool: KVPool, ranks: Ranks) -> None:
        self.keys, self.values, self.shape = pool.keys, pool.values, pool.shape
        self._ranks = ranks

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        self._ranks.say(said(Order.MOVE, sources.cpu(), destinations.cpu()))
        super().move(sources, destinations)


class Announcer:
    """Told of each batch before it is computed."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(self, batch: Batch) -> None:
        self._ranks.say(batch_said(batch))
