"""What a verification's attention costs by its rows: planning it, and one layer.

    python -m benchmarks.attention [--context 16384 --dtype float32 --deterministic]

Two revisions are compared by running this file in turns with the sources of each in PYTHONPATH.
Best of many turns, one core.
"""

import argparse
import time
from collections.abc import Callable

import torch

from ssd.attention.backend import Span
from ssd.attention.sdpa import DETERMINISTIC_KEY_TILE, SdpaBackend
from ssd.kvcache.pool import KVPool, PoolShape

ROWS = (1, 5, 9)
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 12, 2, 128, 16
"""Of Qwen2.5-1.5B."""
_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--deterministic", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtype, num_blocks = getattr(torch, options.dtype), options.context // BLOCK + 2
    shape = PoolShape(
        1, KV_HEADS, HEAD_DIM, num_blocks, BLOCK, dtype, torch.device("cpu"), DETERMINISTIC_KEY_TILE
    )
    pool = KVPool(shape)
    pool.keys.normal_()
    pool.values.normal_()
    backend = SdpaBackend(pool, HEADS, deterministic=options.deterministic)
    print(f"{'rows':>4} {'plan ms':>9} {'layer ms':>9}")
    for rows in ROWS:
        span = Span(0, rows, options.context - rows, range(num_blocks))
        plan = backend.plan([span], rows)
        queries, keys, values = (
            torch.randn(rows, heads, HEAD_DIM).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        planning = best(lambda: backend.plan([span], rows))
        attending = best(lambda: plan.attend(0, queries, keys, values))
        print(f"{rows:4} {1e3 * planning:9.2f} {1e3 * attending:9.2f}", flush=True)


def best(work: Callable[[], object]) -> float:
    work()
    times, until = list[float](), time.perf_counter() + _SECONDS
    while time.perf_counter() < until:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main()
