"""How much of a problem one program takes: pure choices from shapes, so that a captured step keeps them.

Chosen so that no register spills on the shapes of `benchmarks/kernel_table.py`; what is fastest a GPU would
have to say. Knows shapes only.
"""

from dataclasses import dataclass

NO_SPLIT = 0
NOT_KNOWN = 0
FIXED_SPLIT = 1024
"""Keys between two fixed borders of splits: deterministic mode's, at multiples of it in every text."""
_MOST_SPLITS = 32
_LEAST_SPLIT = 256
"""Keys that are worth a program of their own."""
_FIXED_FOLDED = 64
_MOST_FOLDED = 128
_LEAST_FOLDED = 16
"""What a matrix unit multiplies at least."""
_BLOCK = 64
_NARROW_BLOCK = 32
_NARROWEST_BLOCK = 16
"""Keys that a program holds at a time, and as many values."""
_PART_BYTES = 1 << 28
"""What parts of one launch may take."""


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    folded: int
    """Rows of a tile, heads of a group counted each."""
    block: int
    """Keys at a time."""
    num_warps: int
    num_splits: int
    split_keys: int
    """Splits end at multiples of it; `NO_SPLIT`: where the tile's keys are shared out evenly."""
    rows_at_once: int

    def rows(self, group: int) -> int:
        """Of one tile."""
        return self.folded // group


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One forward's attention, as far as shapes tell it."""

    num_rows: int
    num_sequences: int
    """With nobody, whose rows are padding; or `NOT_KNOWN`, where rows of any may come."""
    num_keys: int
    """That a block table has room for."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads


def can_attend(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Heads that the kernel is written for; others are torch's."""
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
    """That rows can fall into: padding may lie behind every sequence's."""
    return min(num_rows, num_rows // width + 2 * num_sequences)


def _block(shape: AttentionShape, folded: int, *, is_hip: bool) -> int:
    if shape.itemsize > 2:
        return _NARROWEST_BLOCK
    if is_hip and folded > 64:
        return _NARROWEST_BLOCK
    return _NARROW_BLOCK if is_hip or folded > 32 or shape.head_dim > 128 else _BLOCK


def _folded(shape: AttentionShape) -> int:
    """All rows of a sequence in one tile, if they are as many for each: then its pages are read once."""
    if shape.num_sequences == NOT_KNOWN:
        # Places that stay empty cost arithmetic, of which there is enough; pages read again cost time.
        wanted = min(shape.num_rows * shape.group, _FIXED_FOLDED)
    else:
        each = -(-shape.num_rows // max(1, shape.num_sequences - 1))
        wanted = min(each * shape.group, _MOST_FOLDED)
    folded = _LEAST_FOLDED
    while folded < max(wanted, shape.group):
        folded *= 2
    return folded
