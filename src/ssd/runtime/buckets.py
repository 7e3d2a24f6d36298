"""How many rows a captured step has: the least of a few sizes that holds what is asked for. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ssd.attention.inputs import Layout, SequenceInput
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

    def layout(self, rows: Sequence[SequenceInput]) -> Layout | None:
        """None: more rows than were captured, or of prompts, where those have tiles of their own."""
        if self.tile is not None and not all(row.generated for row in rows):
            return None
        packed = packed_layout(rows)
        size = self.size_for(packed.num_rows)
        if size is None:
            return None
        # Tables as small as they are: room for all that there could be is in what was captured.
        return replace(self.padded(size), first_rows=packed.first_rows, num_sequences=None, num_blocks=None)

    def padded(self, size: int) -> Layout:
        """Nothing but padding: any row may be a sequence of its own, and any row's logits may be wanted."""
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
    """Of the usual sizes those that a step may need: the last holds as many rows as it can have."""
    fitting = [size for size in DEFAULT_SIZES if tile is None or size % tile == 0] or [tile or 1]
    place = bisect_left(fitting, most_rows)
    return Buckets(num_blocks, tuple(fitting[: place + 1]), tile)
