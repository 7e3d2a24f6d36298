"""How long a model takes to load, as a start of the engine does it, and the memory that it then holds.

    python -m benchmarks.loading MODEL.gguf [--cores 0,1] [--dtype float32] [--precision int8]

Prints seconds, seconds of processor, and resident memory beside the bytes that the form of weights takes. On
a busy machine the processor's seconds say more. Two revisions are compared by running this file in turns with
the sources of each in PYTHONPATH. Memory is read on Linux only.
"""

import resource
import time
from pathlib import Path

from benchmarks.flags import parser
from ssd.config import RunnerConfig
from ssd.runtime.loading import load_model
from ssd.runtime.memory_needs import memory_needs

FLAGS = {"model:": str, "cores": "", "dtype": "auto", "precision": "model"}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    config = RunnerConfig(
        model=options.model,
        device="cpu",
        dtype=options.dtype,
        precision=options.precision,
        cores=tuple(int(each) for each in options.cores.split(",") if each),
        kv_cache_bytes=1 << 26,
    )
    expected, before = memory_needs("the model", config).weights, resident_bytes()
    started, worked = time.perf_counter(), time.process_time()
    loaded = load_model(config)
    print(f"{time.perf_counter() - started:.1f} s, {time.process_time() - worked:.1f} s of processor")
    resident = resident_bytes() - before
    print(
        f"{resident / 2**30:.2f} GiB resident, {resident / expected:.2f} × the {expected / 2**30:.2f} GiB "
        f"of weights in this form; context of {loaded.max_model_len} tokens"
    )


if __name__ == "__main__":
    main()
