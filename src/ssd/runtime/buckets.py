"""Bucket sizes of captured steps: a step uses the smallest captured size that holds its rows. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ssd.attention.inputs import Layout, SequenceInput
from ssd.runtime.layout import packed_layout

DEFAULT_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class Buckets:
    num_blocks: int
    """Blocks in a sequence's table; captured shapes are those of the longest sequence."""
    sizes: Sequence[int] = DEFAULT_SIZES
    tile: int | None = None
    """Rows that linears see at once; all sizes are multiples of it. A row then has the same bits in every
    bucket. None: all at once."""

    def size_for(self, num_rows: int) -> int | None:
        """None if there are more rows than the largest captured size."""
        index = bisect_left(self.sizes, num_rows)
        return self.sizes[index] if index < len(self.sizes) else None

    def layout(self, rows: Sequence[SequenceInput]) -> Layout | None:
        """None if there are more rows than were captured, or prompt rows while `tile` is set."""
        if self.tile is not None and not all(row.generated for row in rows):
            return None
        packed = packed_layout(rows)
        size = self.size_for(packed.num_rows)
        if size is None:
            return None
        # Tables keep their own size; the captured buffers hold the largest possible ones.
        return replace(self.padded(size), first_rows=packed.first_rows, num_sequences=None, num_blocks=None)

    def padded(self, size: int) -> Layout:
        """A layout of padding only: each row may be its own sequence, and its logits may be wanted."""
        tiles = () if self.tile is None else (self.tile,) * (size // self.tile)
        return Layout(
            (),
            size,
            tiles,
            num_wanted=size,
            head_tiles=tiles,
            num_sequences=size,
            num_blocks=self.num_blocks,
        )


def buckets_for(num_blocks: int, most_rows: int, tile: int | None) -> Buckets:
    """The default sizes up to the first that holds `most_rows`; multiples of the tile only."""
    fitting = [size for size in DEFAULT_SIZES if tile is None or size % tile == 0] or [tile or 1]
    index = bisect_left(fitting, most_rows)
    return Buckets(num_blocks, tuple(fitting[: index + 1]), tile)
