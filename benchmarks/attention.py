"""What a verification's attention costs by its rows: planning it, and one layer.

    python -m benchmarks.attention [--context 16384 --dtype float32 --deterministic]

Two revisions are compared by running this file in turns with the sources of each in PYTHONPATH.
Best of many turns, one core.
"""

import torch

from benchmarks.flags import parser
from benchmarks.in_turns import best
from ssd.attention.batch import BatchWriter
from ssd.attention.inputs import Layout, PlainInput
from ssd.attention.rotation import Rotation
from ssd.attention.sdpa import DETERMINISTIC_KEY_TILE, SdpaBackend
from ssd.kvcache.pool import KVPool, PoolShape

FLAGS = {"context": 16384, "dtype": "float32", "deterministic": False}

ROWS = (1, 5, 9)
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 12, 2, 128, 16
"""Of Qwen2.5-1.5B."""


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
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
        row = PlainInput([0] * rows, options.context - rows, range(num_blocks), 0, generated=True)
        batch = BatchWriter(BLOCK, pool.scratch_slot).write([row], Layout((0,), rows))
        plan = backend.plan(batch)
        projected = torch.randn(rows, HEADS + 2 * KV_HEADS, HEAD_DIM).to(dtype)
        heads, values = torch.split(projected, [HEADS + KV_HEADS, KV_HEADS], dim=1)
        rotation = Rotation.none(rows, HEAD_DIM, heads.device)
        planning = best(lambda batch=batch: backend.plan(batch), within=1.0)  # type: ignore[misc]
        attending = best(lambda: plan.attend(0, heads, values, rotation), within=1.0)
        print(f"{rows:4} {1e3 * planning:9.2f} {1e3 * attending:9.2f}", flush=True)


if __name__ == "__main__":
    main()
