"""What each kernel must move for a step, and how long that takes at a GPU's bandwidth. Arithmetic, no clock.

Each byte that a kernel reads or writes counts once; caches are ignored. A kernel that takes about as long as
its bytes at a GPU's bandwidth is as good as it can be; launches come on top.

python -m benchmarks.kernel_bytes [--context 4096 --devices a100 h100 b200 mi300x]
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.flags import parser
from ssd.kernels.tiles import AttentionShape, attention_tiles
from ssd.planning.hardware import find_device

FLAGS = {"context": 4096, "devices": ["a100", "h100", "b200", "mi300x"]}
PROCESSORS = 132
"""Of an H100: they decide how keys are split."""

# Layers, heads, key heads, head size, vocabulary; rows of a step, and nodes of a tree that they see.
STEPS = {
    "Llama-3.1 70B verifies 1 × 9": (80, 64, 8, 128, 128_256, 1, 9, 0),
    "Llama-3.1 70B verifies 16 × 9": (80, 64, 8, 128, 128_256, 16, 9, 0),
    "Llama-3.2 1B grows 1 × 12": (16, 32, 8, 64, 128_256, 1, 12, 64),
    "Qwen3 32B verifies 1 × 9": (64, 64, 8, 128, 151_936, 1, 9, 0),
    "Qwen3 0.6B grows 1 × 12": (28, 16, 8, 128, 151_936, 1, 12, 64),
}

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


def attention_traffic(
    demand: AttentionShape, num_keys: int, num_nodes: int, *, num_processors: int
) -> Traffic:
    """One layer's: `num_keys` and `num_nodes` are what each sequence's rows see together.

    Keys count once for each tile of rows: beyond the first, a cache may have them.
    """
    tiles = attention_tiles(demand, num_processors=num_processors, is_hip=False, deterministic=False)
    sequences = demand.num_sequences - 1
    each = demand.num_rows // sequences
    num_tiles = sequences * -(-each // tiles.rows(demand.group))
    slot = 2 * demand.num_kv_heads * demand.head_dim * demand.itemsize
    rows = demand.num_rows * demand.num_heads * demand.head_dim * demand.itemsize
    parts = 0
    if tiles.num_splits > 1:
        parts = tiles.num_splits * demand.num_rows * demand.num_heads * (demand.head_dim + 1) * _WORD
    keys = num_tiles * (num_keys + num_nodes) * slot
    return Traffic(keys + rows + parts, rows + parts, 2 if parts else 1)


def rotate_traffic(demand: AttentionShape) -> Traffic:
    """One layer's: queries, keys and values, and the angles."""
    each = demand.num_rows * demand.head_dim
    moved = each * (demand.num_heads + 2 * demand.num_kv_heads) * demand.itemsize
    return Traffic(moved + each * _WORD, moved, 1)


def move_traffic(demand: AttentionShape, num_layers: int, num_slots: int) -> Traffic:
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


def kernels(step: tuple[int, ...], context: int) -> Iterator[tuple[str, Traffic]]:
    layers, heads, kv_heads, head_dim, vocabulary, sequences, rows, nodes = step
    demand = AttentionShape(sequences * rows, sequences + 1, context, heads, kv_heads, head_dim, 2)
    yield "rotate", rotate_traffic(demand).times(layers)
    yield "attend", attention_traffic(demand, context, nodes, num_processors=PROCESSORS).times(layers)
    if nodes:
        yield "move 4", move_traffic(demand, layers, 4)
        yield "children", children_traffic(sequences * rows, vocabulary, 2, 4)
    else:
        yield "decide", decide_traffic(sequences * rows, vocabulary, 2)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    devices = {name: find_device(name) for name in options.devices}
    heads = " ".join(f"{name + ' µs':>10}" for name in devices)
    print(f"{'step':32} {'kernel':9} {'MB':>8} {'launches':>8} {heads}")
    for name, step in STEPS.items():
        for kernel, traffic in kernels(step, options.context):
            times = " ".join(f"{1e6 * traffic.total / device.bandwidth:10.1f}" for device in devices.values())
            print(f"{name:32} {kernel:9} {traffic.total / 1e6:8.2f} {traffic.launches:8} {times}")


if __name__ == "__main__":
    main()
