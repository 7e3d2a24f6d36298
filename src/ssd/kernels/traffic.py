"""What each kernel must move, in bytes: read once and written once, whatever a cache may spare.

Pure arithmetic on shapes, for plans and pages. A kernel that takes about as long as its bytes at a card's
bandwidth is as good as it can be; launches come on top.
"""

from dataclasses import dataclass

from ssd.kernels.tiles import Demand, attention_tiles

_WORD = 4
_VOCABULARY_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Traffic:
    read: int
    written: int
    launches: int

    @property
    def total(self) -> int:
        return self.read + self.written

    def times(self, count: int) -> "Traffic":
        return Traffic(self.read * count, self.written * count, self.launches * count)


def attention_traffic(demand: Demand, num_keys: int, num_nodes: int, *, num_processors: int) -> Traffic:
    """One layer's: `num_keys` and `num_nodes` are what each sequence's rows see together.

    Keys count once for each tile of rows: beyond the first, a cache may have them.
    """
    tiles = attention_tiles(demand, num_processors=num_processors, is_hip=False, deterministic=False)
    sequences = demand.num_sequences - 1
    each = demand.num_rows // sequences
    walks = sequences * -(-each // tiles.rows(demand.group))
    slot = 2 * demand.num_kv_heads * demand.head_dim * demand.itemsize
    rows = demand.num_rows * demand.num_heads * demand.head_dim * demand.itemsize
    parts = 0
    if tiles.num_splits > 1:
        parts = tiles.num_splits * demand.num_rows * demand.num_heads * (demand.head_dim + 1) * _WORD
    keys = walks * (num_keys + num_nodes) * slot
    return Traffic(keys + rows + parts, rows + parts, 2 if parts else 1)


def write_traffic(demand: Demand) -> Traffic:
    """One layer's."""
    moved = 2 * demand.num_rows * demand.num_kv_heads * demand.head_dim * demand.itemsize
    return Traffic(moved, moved, 1)


def move_traffic(demand: Demand, num_layers: int, num_slots: int) -> Traffic:
    """All layers': of an outcome's accepted tokens."""
    moved = 2 * num_layers * num_slots * demand.num_kv_heads * demand.head_dim * demand.itemsize
    return Traffic(moved, moved, 1)


def decide_traffic(num_rows: int, vocab_size: int, itemsize: int) -> Traffic:
    blocks = -(-vocab_size // _VOCABULARY_BLOCK)
    found = num_rows * blocks * 2 * _WORD
    return Traffic(num_rows * vocab_size * itemsize + found, found, 2)


def children_traffic(num_rows: int, vocab_size: int, itemsize: int, count: int) -> Traffic:
    blocks = -(-vocab_size // _VOCABULARY_BLOCK)
    found = num_rows * blocks * (2 * count + 1) * _WORD
    return Traffic(num_rows * vocab_size * itemsize + found, found, 2)
