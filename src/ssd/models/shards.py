"""Linears on CPUs whose results do not depend on the number of threads.

A library may split the sums of one multiply differently for each number of threads, which changes the last
bits. Here every operation runs on one thread: the outputs of a linear are cut into shards, whose number
depends only on the linear's size, and the threads share the shards. Knows multiplies and torch's number of
threads. Does not know models or requests.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ssd.models.linear import MakeMatMul, MatMul, Matrix

MOST_SHARDS = 32
"""More threads than this are not used."""
SHARD_OUTPUTS = 256
"""Minimum number of outputs of a shard: smaller calls are not worth their overhead."""
SPREAD_WEIGHTS = 1 << 19
"""Minimum number of weights for several threads: fewer are multiplied before another thread wakes up."""


def num_shards(num_outputs: int) -> int:
    """Depends on the size of the weight only, so that machines with different cores compute the same bits."""
    return max(1, min(MOST_SHARDS, num_outputs // SHARD_OUTPUTS))


class ShardThreads:
    """The threads that multiply shards. Uses torch's number of threads at the start of each forward."""

    def __init__(self) -> None:
        self._num_threads = 1
        self._others: ThreadPoolExecutor | None = None
        self._num_others = 0

    @contextlib.contextmanager
    def one_for_each_operation(self) -> Iterator[None]:
        """Within it, torch runs each operation on one thread, and shards use torch's previous number."""
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._num_threads = num_threads
        try:
            yield
        finally:
            self._num_threads = 1
            torch.set_num_threads(num_threads)

    def run(self, works: Sequence[Callable[[], None]], num_weights: int) -> None:
        """Calls all functions, each on one thread."""
        num_threads = min(self._num_threads, len(works)) if num_weights >= SPREAD_WEIGHTS else 1
        # All threads share one iterator: each takes the next item when it has finished the last one.
        rest = iter(works)
        helpers = [self._executor().submit(_work_off, rest) for _ in range(num_threads - 1)]
        _work_off(rest)
        for each in helpers:
            each.result()

    def _executor(self) -> ThreadPoolExecutor:
        if self._others is None or self._num_others < self._num_threads - 1:
            # The threads of a smaller pool end when the pool is garbage collected.
            self._num_others = self._num_threads - 1
            self._others = ThreadPoolExecutor(self._num_others, "ssd-shard", torch.set_num_threads, (1,))
        return self._others


@torch.inference_mode()
def _work_off(works: Iterator[Callable[[], None]]) -> None:
    for work in works:
        work()


def sharded(make: MakeMatMul, threads: ShardThreads) -> MakeMatMul:
    """Like `make`, in shards; weights are also packed on one thread."""

    def make_sharded(weight: Matrix, bias: Tensor | None) -> MatMul:
        count = num_shards(len(weight))
        biases = [None] * count if bias is None else bias.tensor_split(count)
        with threads.one_for_each_operation():
            shards = [make(*each) for each in zip(weight.tensor_split(count), biases, strict=True)]
        sizes = [len(each) for each in weight.tensor_split(count)]
        return _Sharded(shards, sizes, weight.numel(), threads)

    return make_sharded


class _Sharded:
    def __init__(
        self, shards: Sequence[MatMul], sizes: Sequence[int], num_weights: int, threads: ShardThreads
    ) -> None:
        self._shards, self._sizes, self._num_weights, self._threads = shards, sizes, num_weights, threads

    def __call__(self, x: Tensor) -> Tensor:
        if len(self._shards) == 1:
            return self._shards[0](x)
        out = x.new_empty(len(x), sum(self._sizes))
        pieces = zip(self._shards, torch.split(out, list(self._sizes), dim=1), strict=True)
        self._threads.run([_into(part, shard, x) for shard, part in pieces], self._num_weights)
        return out


def _into(out: Tensor, shard: MatMul, x: Tensor) -> Callable[[], None]:
    def work() -> None:
        out.copy_(shard(x))

    return work
