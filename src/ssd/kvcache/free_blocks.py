"""Chooses which plain free block to allocate next, so that a sequence's blocks tend to be consecutive.

Knows block numbers. Does not know sequences, references or cached content. Attention can read consecutive
blocks as a view instead of gathering them; results do not depend on it.
"""

# A badly fragmented pool has thousands of runs. Scanning a few is good enough, and with 1,000 growing texts a
# draft does it some twenty times a step.
MAX_RUNS_SCANNED = 32


class FreeBlocks:
    """The set of plain free blocks. `put` and `in` take constant time."""

    def __init__(self, num_blocks: int) -> None:
        # One byte per block, so that memchr finds runs instead of a Python loop.
        self._is_free = bytearray(b"\x01" * num_blocks)
        self.num_free = num_blocks

    def __contains__(self, block: int) -> bool:
        return self._is_free[block] == 1

    def put(self, block: int) -> None:
        if self._is_free[block]:
            raise ValueError(f"block {block} is already free")
        self._is_free[block] = 1
        self.num_free += 1

    def take(self, *, after: int | None, num_wanted: int = 1) -> int:
        """Takes the block after `after` if it is free, else the best start for `num_wanted` blocks."""
        if not self.num_free:
            raise LookupError("no plain free block is left")
        neighbour = 0 if after is None else after + 1
        if after is None or neighbour >= len(self._is_free) or not self._is_free[neighbour]:
            neighbour = self._start_of_run(num_wanted)
        self._is_free[neighbour] = 0
        self.num_free -= 1
        return neighbour

    def _start_of_run(self, num_wanted: int) -> int:
        """The middle of the longest free run, so that the owner of the blocks before it can also grow."""
        start, length = self._longest_run()
        if length == len(self._is_free):
            return 0
        return start + min(length // 2, max(0, length - num_wanted))

    def _longest_run(self) -> tuple[int, int]:
        flags = self._is_free
        best_start, best_length, stop = -1, 0, 0
        for _ in range(MAX_RUNS_SCANNED):
            start = flags.find(1, stop)
            if start < 0:
                break
            stop = flags.find(0, start)
            if stop < 0:
                stop = len(flags)
            if stop - start > best_length:
                best_start, best_length = start, stop - start
        return best_start, best_length
