"""What a draft step of Llama-3.2-1B asks of a GPU, and what that costs by the table of devices.

    python -m benchmarks.draft_step_cost [--batch 1 16 64] [--context 1024] [--rounds 40] [--devices h100]

Nothing is measured on a GPU; the host's time is this machine's, of one thread. A step either begins with an
outcome for every sequence, or follows one that did. `kernels`: all that the device runs, in `graphs` and
beside them. `moved`: bytes in the device's memory; `needed`: how many times the bytes that a forward must
read (weights, and the sequences' keys once). `host`: ms of the host's own work, p50; replays take no time.
The rest: ms from one step to the next.
How it counts: `counted_step.py`.
"""

from collections.abc import Sequence
from statistics import median

import torch

from benchmarks.counted_step import (
    LLAMA_1B,
    CountedStep,
    Scene,
    bytes_to_read,
    counted_steps,
    graphs_of,
    host_seconds,
    with_graphs,
)
from benchmarks.flags import parser
from ssd.config import DraftConfig
from ssd.draft.protocol.messages import Sampling
from ssd.planning.hardware import find_device
from ssd.planning.step_price import price

FLAGS = {
    "batch": [1, 16, 64],
    "context": 1024,
    "rounds": 40,
    "devices": ["h100", "a100", "rtx4090", "mi300x"],
}
CONFIG = DraftConfig(model="Llama-3.2-1B")
SAMPLINGS = {
    "greedy": Sampling(seed=1),
    "greedy, penalty": Sampling(seed=1, repetition_penalty=1.1),
    "T=0.8 top_p=0.9": Sampling(seed=1, temperature=0.8, top_p=0.9),
    "T=0.8 top_p=0.9, penalty": Sampling(seed=1, temperature=0.8, top_p=0.9, repetition_penalty=1.1),
}
KINDS = ("outcomes", "no outcome")
COLUMNS = ("batch", "sampling", "step", "kernels", "graphs", "uploads", "reads", "moved MB", "needed", "host")


def line(step: CountedStep, host: float, devices: Sequence[str]) -> str:
    moved = sum(each.num_bytes for each in step.kernels)
    counts = " | ".join(
        f"{len(each)}" for each in (step.kernels, step.of("replay"), step.of("upload"), step.of("read"))
    )
    prices = " | ".join(f"{1e3 * price(step.calls, find_device(each), host).seconds:.2f}" for each in devices)
    ratio = moved / bytes_to_read(LLAMA_1B, step.live)
    return f"{counts} | {moved / 1e6:,.0f} | {ratio:.2f} | {1e3 * host:.2f} | {prices}"


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    shape, graphs = graphs_of(LLAMA_1B, CONFIG)
    names = (*COLUMNS, *options.devices)
    print("| " + " | ".join(names) + " |")
    print("| " + " | ".join(["--:", "---", "---", *["--:"] * (len(names) - 3)]) + " |")
    for batch in options.batch:
        for name, sampling in SAMPLINGS.items():
            scene = Scene(batch, options.context, sampling)
            hosts = host_seconds(shape, scene, options.rounds)
            for kind, step, host in zip(KINDS, counted_steps(shape, scene), hosts, strict=True):
                known = with_graphs(step, graphs, LLAMA_1B)
                print(
                    f"| {batch} | {name} | {kind} | {line(known, median(host), options.devices)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
