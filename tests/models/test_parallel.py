"""A model split over two ranks computes what the whole one does, up to the order of sums."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ssd.attention.rows import PlainRow
from ssd.attention.sdpa import SdpaBackend
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.models.checkpoint import Checkpoint, open_checkpoint
from ssd.models.decoder import DenseDecoder
from ssd.models.parallel import Alone, Collective, Shard
from ssd.runtime.eager import EagerRunner
from ssd.runtime.runner import forward
from tests.tiny import write_checkpoint

CPU = torch.device("cpu")


class Ranks:
    """Threads that exchange tensors: the real shape of a collective, in one process."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=30)
        self.slots: list[Tensor] = [torch.empty(0)] * world_size

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self.slots[rank] = x
        self.barrier.wait()
        everyone = list(self.slots)
        self.barrier.wait()
        return everyone


class ThreadCollective:
    def __init__(self, ranks: Ranks, rank: int) -> None:
        self._ranks, self._rank = ranks, rank

    def sum(self, x: Tensor) -> Tensor:
        return torch.stack(self._ranks.exchange(self._rank, x)).sum(0)

    def concatenate(self, x: Tensor) -> Tensor:
        return torch.cat(self._ranks.exchange(self._rank, x), dim=-1)


def runner(checkpoint: Checkpoint, shard: Shard, collective: Collective) -> EagerRunner:
    config = checkpoint.config
    num_kv_heads = config.num_kv_heads // shard.world_size
    shape = PoolShape(config.num_layers, num_kv_heads, config.head_dim, 8, 16, torch.float32, CPU, 16)
    model = DenseDecoder(
        config,
        checkpoint.weights(),
        num_positions=128,
        dtype=torch.float32,
        device=CPU,
        shard=shard,
        collective=collective,
    )
    pool = KVPool(shape)
    return EagerRunner(model, SdpaBackend(pool, config.num_heads // shard.world_size), pool)


@pytest.mark.parametrize("kind", ["llama-biased", "qwen2", "qwen3", "llama-tied"])
def test_two_ranks_equal_one(kind: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_checkpoint(kind, tmp_path)))
    rows = [PlainRow(list(range(5, 40)), 0, [3, 1, 0], 35, generated=False)]
    whole = forward(runner(checkpoint, Shard(), Alone()), rows)
    ranks, results = Ranks(2), {}

    def run(rank: int) -> None:
        share = runner(checkpoint, Shard(rank, 2), ThreadCollective(ranks, rank))
        results[rank] = forward(share, rows)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(2):
        torch.testing.assert_close(results[rank], whole, rtol=1e-4, atol=1e-4)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_checkpoint("qwen2", tmp_path)))
    with pytest.raises(ValueError, match="cannot be split over 3 ranks"):
        runner(checkpoint, Shard(0, 3), Alone())
