"""Linears on CPUs whose bits do not depend on the number of threads.

A library may split the sums of one multiply differently for each number of threads, and then the last bits
differ. Here every operation runs on one thread: the outputs of a linear are cut into shards, as many as its
size says, and threads only decide who multiplies which shard. Knows multiplies and torch's number of threads;
not models or requests.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ssd.models.linear import MakeMatMul, MatMul

MOST_SHARDS = 32
"""More threads than this find nothing to do."""
SHARD_OUTPUTS = 256
"""Outputs that are worth a call of their own."""
SPREAD_WEIGHTS = 1 << 19
"""Weights that are worth more than one thread: fewer are multiplied before another thread wakes."""


def num_shards(num_outputs: int) -> int:
    """Follows from the size of the weight alone: a machine with other cores cuts in the same places."""
    return max(1, min(MOST_SHARDS, num_outputs // SHARD_OUTPUTS))


class ShardThreads:
    """The threads that multiply shards: those that torch has for the caller, found anew for each forward."""

    def __init__(self) -> None:
        self._num_threads = 1
        self._others: ThreadPoolExecutor | None = None
        self._num_others = 0

    @contextlib.contextmanager
    def one_for_each_operation(self) -> Iterator[None]:
        """Torch's operations run on one thread each within, and shards on as many as torch had before."""
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._num_threads = num_threads
        try:
            yield
        finally:
            self._num_threads = 1
            torch.set_num_threads(num_threads)

    def run(self, works: Sequence[Callable[[], None]], num_weights: int) -> None:
        """Does all of them, each on one thread."""
        num_threads = min(self._num_threads, len(works)) if num_weights >= SPREAD_WEIGHTS else 1
        # One iterator for all threads: each takes the next work when it is done with its own.
        rest = iter(works)
        helpers = [self._executor().submit(_work_off, rest) for _ in range(num_threads - 1)]
        _work_off(rest)
        for each in helpers:
            each.result()

    def _executor(self) -> ThreadPoolExecutor:
        if self._others is None or self._num_others < self._num_threads - 1:
            # Those of a smaller pool end by themselves once nobody holds it.
            self._num_others = self._num_threads - 1
            self._others = ThreadPoolExecutor(self._num_others, "ssd-shard", torch.set_num_threads, (1,))
        return self._others


@torch.inference_mode()
def _work_off(works: Iterator[Callable[[], None]]) -> None:
    for work in works:
        work()


def sharded(make: MakeMatMul, threads: ShardThreads) -> MakeMatMul:
    """As `make`, in shards; the weight's layout is chosen on one thread too."""

    def make_sharded(weight: Tensor, bias: Tensor | None) -> MatMul:
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
        self._threads.run([_into(place, shard, x) for shard, place in pieces], self._num_weights)
        return out


def _into(place: Tensor, shard: MatMul, x: Tensor) -> Callable[[], None]:
    def work() -> None:
        place.copy_(shard(x))

    return work
