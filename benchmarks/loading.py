"""How long a model takes to load, as a start of the engine does it: seconds, and seconds of processor.

    python -m benchmarks.loading MODEL.gguf [--cores 0,1]

On a busy machine the second number says more. Two revisions are compared by running this file in turns with
the sources of each in PYTHONPATH.
"""

import time

from benchmarks.flags import parser
from ssd.config import RunnerConfig
from ssd.runtime.loading import load_model

FLAGS = {"model:": str, "cores": ""}


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    cores = tuple(int(each) for each in options.cores.split(",") if each)
    config = RunnerConfig(model=options.model, device="cpu", cores=cores, kv_cache_bytes=1 << 26)
    started, worked = time.perf_counter(), time.process_time()
    load_model(config)
    print(f"{time.perf_counter() - started:.1f} s, {time.process_time() - worked:.1f} s of processor")


if __name__ == "__main__":
    main()
