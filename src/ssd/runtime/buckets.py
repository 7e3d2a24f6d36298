"""How many rows a captured step has: the least of a few sizes that holds what is asked for. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ssd.attention.rows import Layout, Row
from ssd.runtime.layout import packed_layout

DEFAULT_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class Buckets:
    num_blocks: int
    """Of a sequence's table: captured shapes are those of the longest."""
    sizes: Sequence[int] = DEFAULT_SIZES
    tile: int | None = None
    """Rows that linears see at once; all sizes are multiples of it. A row then has the same bits in every
    bucket. None: all at once."""

    def size_for(self, num_rows: int) -> int | None:
        """None: more rows than were captured."""
        place = bisect_left(self.sizes, num_rows)
        return self.sizes[place] if place < len(self.sizes) else None

    def layout(self, rows: Sequence[Row]) -> Layout | None:
        """None: more rows than were captured."""
        packed = packed_layout(rows)
        size = self.size_for(packed.num_rows)
        return None if size is None else self.padded(size, packed.first_rows)

    def padded(self, size: int, first_rows: tuple[int, ...] = ()) -> Layout:
        """Of one size: any row may be a sequence of its own, and any row's logits may be wanted."""
        tiles = () if self.tile is None else (self.tile,) * (size // self.tile)
        return Layout(
            first_rows,
            size,
            tiles,
            num_wanted=size,
            head_tiles=tiles,
            num_sequences=size,
            num_blocks=self.num_blocks,
        )
