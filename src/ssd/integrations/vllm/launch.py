"""Runs `vllm serve` in this process, and exits when the parent process does.

    python -m ssd.integrations.vllm.launch FOLDER serve MODEL …        as vllm serve MODEL …

`FOLDER` is removed at the end. Changes nothing else about vLLM's command.
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


# vLLM's child processes import this file again.
if __name__ == "__main__":
    main()
