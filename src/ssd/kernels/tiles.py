"""Chooses the tile sizes of attention from shapes only, so that they hold for all replays of a captured step.

The sizes avoid register spills on the shapes of `benchmarks/kernel_compile.py`; they are not tuned on a GPU.
Knows shapes only.
"""

from dataclasses import dataclass

NO_SPLIT = 0
NOT_KNOWN = 0
FIXED_SPLIT = 1024
"""Keys of a split in deterministic mode, where splits end at multiples of it in every text."""
_MOST_SPLITS = 32
_LEAST_SPLIT = 256
"""Fewest keys that are worth a separate program."""
_FIXED_FOLDED = 64
_MOST_FOLDED = 128
_LEAST_FOLDED = 16
"""Fewest rows that a matrix unit multiplies."""
_BLOCK = 64
_NARROW_BLOCK = 32
_NARROWEST_BLOCK = 16
"""Keys, and as many values, that a program holds at a time."""
_PART_BYTES = 1 << 28
"""Largest size of the partial results of one launch."""


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    folded: int
    """Rows × heads of a group in a tile."""
    block: int
    """Keys that a program loads at a time."""
    num_warps: int
    num_splits: int
    split_keys: int
    """Splits end at multiples of it; `NO_SPLIT`: splits divide the tile's keys evenly."""
    rows_at_once: int

    def rows(self, group: int) -> int:
        """Rows of one tile."""
        return self.folded // group


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The shapes of one forward's attention."""

    num_rows: int
    num_sequences: int
    """Including the sequence of padding rows; `NOT_KNOWN`: any number."""
    num_keys: int
    """Capacity of a block table."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads


def can_attend(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether the kernel supports these heads; torch computes others."""
    is_power = head_dim & (head_dim - 1) == 0
    return is_power and 16 <= head_dim <= 256 and num_heads // num_kv_heads <= _FIXED_FOLDED


def attention_tiles(
    shape: AttentionShape, *, num_processors: int, is_hip: bool, deterministic: bool
) -> AttentionTiles:
    if deterministic:
        splits = -(-shape.num_keys // FIXED_SPLIT)
        bytes_per_row = splits * shape.num_heads * shape.head_dim * 4
        rows = max(1, _PART_BYTES // bytes_per_row) if splits > 1 else shape.num_rows
        block = _block(shape, _FIXED_FOLDED, is_hip=is_hip)
        return AttentionTiles(_FIXED_FOLDED, block, 8, splits, FIXED_SPLIT, rows)
    folded = _folded(shape)
    block = _block(shape, folded, is_hip=is_hip)
    num_tiles = max(1, shape.num_rows // (folded // shape.group))
    wanted = -(-2 * num_processors // (num_tiles * shape.num_kv_heads))
    splits = max(1, min(wanted, _MOST_SPLITS, shape.num_keys // _LEAST_SPLIT))
    return AttentionTiles(folded, block, 8 if folded > 32 else 4, splits, NO_SPLIT, shape.num_rows)


def most_tiles(num_rows: int, num_sequences: int, width: int) -> int:
    """The largest possible number of tiles: every sequence may be followed by padding rows."""
    return min(num_rows, num_rows // width + 2 * num_sequences)


def _block(shape: AttentionShape, folded: int, *, is_hip: bool) -> int:
    if shape.itemsize > 2:
        return _NARROWEST_BLOCK
    if is_hip and folded > 64:
        return _NARROWEST_BLOCK
    return _NARROW_BLOCK if is_hip or folded > 32 or shape.head_dim > 128 else _BLOCK


def _folded(shape: AttentionShape) -> int:
    """Fits all rows of an average sequence into one tile, so that its pages are read once."""
    if shape.num_sequences == NOT_KNOWN:
        # Unused rows of a tile only waste arithmetic, but reading pages again takes time.
        wanted = min(shape.num_rows * shape.group, _FIXED_FOLDED)
    else:
        each = -(-shape.num_rows // max(1, shape.num_sequences - 1))
        wanted = min(each * shape.group, _MOST_FOLDED)
    folded = _LEAST_FOLDED
    while folded < max(wanted, shape.group):
        folded *= 2
    return folded
