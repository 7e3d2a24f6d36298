"""`vllm serve` on a lifeline: stock vLLM in this process, gone with whoever started it.

    python -m ssd.integrations.vllm.launch FOLDER serve MODEL …        as vllm serve MODEL …

`FOLDER` was made for this run, and goes with it. Adds nothing else to vLLM's command.
"""

import sys
from functools import partial
from pathlib import Path

from ssd.processes.lifeline import end_with_parent
from ssd.processes.sockets import remove_folder


def main() -> None:
    folder, *words = sys.argv[1:]
    end_with_parent(partial(remove_folder, Path(folder)))
    sys.argv = ["vllm", *words]
    from vllm.entrypoints.cli.main import main as run_vllm

    run_vllm()


# vLLM starts its processes anew, and they read this file again.
if __name__ == "__main__":
    main()
