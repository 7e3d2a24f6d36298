"""A KV memory for tests in which every slot says whose content it is.

A slot stores what real keys and values depend on: all tokens up to that position, and a label (the cache key,
whether it was computed as prompt). Sharing, hashing or evicting wrongly then shows as wrong content.
"""

from collections.abc import Sequence

Content = tuple[tuple[int, ...], str]


class FakeMemory:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._slots: list[Content | None] = [None] * (num_blocks * block_size)

    def write(
        self, table: Sequence[int], tokens: Sequence[int], start: int, stop: int, label: str = ""
    ) -> None:
        """Compute positions start..stop-1 of a sequence that is `tokens` so far."""
        for position in range(start, stop):
            self._slots[self._slot(table, position)] = (tuple(tokens[: position + 1]), label)

    def expect(
        self, table: Sequence[int], tokens: Sequence[int], start: int, stop: int, label: str = ""
    ) -> None:
        """Fail unless positions start..stop-1 hold what this sequence would have computed there."""
        for position in range(start, stop):
            found = self._slots[self._slot(table, position)]
            assert found == (tuple(tokens[: position + 1]), label), f"foreign content at position {position}"

    def _slot(self, table: Sequence[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size
