"""Every kernel compiles for every target, without a spill: a few sets of constants; the rest by command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {
    *("find_tiles", "attend", "merge", "write", "move"),
    *("best_of_blocks", "settle", "children_of_blocks", "join_children"),
    *(
        "rank_tree",
        "queue_up",
        "take",
        "lay_row",
        "lay_run",
        "find_families",
        "confirm",
        "attach",
        "apply_outcome",
        "fade",
    ),
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_kernels_compile_ahead_of_time(target: str, tmp_path: Path) -> None:
    command = ["-m", "benchmarks.kernel_table", "--few", "--models", "qwen3-0.6b", "--targets", target]
    run = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0", "PYTHONPATH": "src:."},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert all(kernel in run.stdout for kernel in KERNELS)
    assert "none spills, and all fit" in run.stdout
