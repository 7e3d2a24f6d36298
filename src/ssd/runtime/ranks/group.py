"""Ranks that compute one model together, over torch's process groups: Gloo between CPUs, NCCL between GPUs.

What the leader says goes over Gloo in both cases. A group of one host. No collective times out by itself:
whoever watches the processes (`followers.py`) ends them when one is lost.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ssd.models.parallel import Shard
from ssd.runtime.ranks.wire import Longs

Store = Any
"""torch's TCPStore, which has no type."""
HOST = "127.0.0.1"
_FIRST_WORDS = 4096
"""Most of what is said fits: then one broadcast is enough."""
_FOR_EVER = timedelta(days=365)
"""A draft may have nothing to do for long, and its followers wait for its next word."""


class RankLost(RuntimeError):  # noqa: N818 - what happened, to be told as it is
    """Another rank is gone, so nothing can be computed any more."""


class Ranks:
    """This process among them. A `Collective` of the model's layers."""

    def __init__(self, rank: int, world_size: int, store: Store, device: torch.device) -> None:
        self.shard = Shard(rank, world_size)
        with _lost_if_it_fails():
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=_FOR_EVER)
            self._computing = dist.new_group(backend="nccl") if device.type == "cuda" else dist.group.WORLD
        self._widens = device.type != "cuda"
        """Gloo sums few number formats, and in float32 loses nothing."""

    @property
    def leads(self) -> bool:
        return self.shard.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        total = x.float() if self._widens else x.contiguous()
        total = total.clone() if total is x else total
        with _lost_if_it_fails():
            dist.all_reduce(total, group=self._computing)
        return total.to(x.dtype)

    def concatenate(self, x: Tensor) -> Tensor:
        mine = x.float().contiguous() if self._widens else x.contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.shard.world_size)]
        with _lost_if_it_fails():
            dist.all_gather(parts, mine, group=self._computing)
        return torch.cat(parts, dim=-1).to(x.dtype)

    def say(self, words: Longs) -> None:
        """To all who follow: [length, words …], what does not fit into the first piece in a second."""
        first = np.zeros(_FIRST_WORDS, np.int64)
        first[0] = len(words)
        fitting = words[: _FIRST_WORDS - 1]
        first[1 : 1 + len(fitting)] = fitting
        self._broadcast(torch.from_numpy(first))
        if len(words) > len(fitting):
            self._broadcast(torch.from_numpy(np.ascontiguousarray(words[len(fitting) :])))

    def hear(self) -> Longs:
        """The leader's next words, however long they take to come."""
        first = torch.zeros(_FIRST_WORDS, dtype=torch.long)
        self._broadcast(first)
        length = int(first[0])
        rest = torch.zeros(max(0, length - (_FIRST_WORDS - 1)), dtype=torch.long)
        if len(rest):
            self._broadcast(rest)
        return torch.cat((first[1 : 1 + length], rest)).numpy()

    def _broadcast(self, words: Tensor) -> None:
        with _lost_if_it_fails():
            dist.broadcast(words, src=0)


@contextmanager
def _lost_if_it_fails() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"another rank is gone: {str(error).splitlines()[0][:200]}") from error


def leading_store(world_size: int) -> Store:
    """Where ranks find each other: on a port of this host that was free."""
    return dist.TCPStore(  # type: ignore[attr-defined]  # not named in its __all__
        HOST, 0, world_size, is_master=True, wait_for_workers=False
    )


def following_store(port: int, world_size: int) -> Store:
    return dist.TCPStore(  # type: ignore[attr-defined]  # not named in its __all__
        HOST, port, world_size, is_master=False
    )
