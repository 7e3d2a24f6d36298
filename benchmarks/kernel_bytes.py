"""What each kernel must move for a step, and how long that takes at a card's bandwidth. Arithmetic, no clock.

python -m benchmarks.kernel_bytes [--context 4096 --devices a100 h100 b200 mi300x]
"""

from collections.abc import Iterator

from benchmarks.flags import parser
from ssd.kernels.tiles import Demand
from ssd.kernels.traffic import (
    Traffic,
    attention_traffic,
    children_traffic,
    decide_traffic,
    move_traffic,
    write_traffic,
)
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


def kernels(step: tuple[int, ...], context: int) -> Iterator[tuple[str, Traffic]]:
    layers, heads, kv_heads, head_dim, vocabulary, sequences, rows, nodes = step
    demand = Demand(sequences * rows, sequences + 1, context, heads, kv_heads, head_dim, 2)
    yield "write", write_traffic(demand).times(layers)
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
