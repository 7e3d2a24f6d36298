"""Every kernel compiles for every target, without a spill: a few sets of constants; the rest by command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.launched import launched_kernels


@pytest.mark.parametrize(
    "target",
    ["sm_90", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gfx942", "sm_80", "sm_100"))],
)
def test_kernels_compile_ahead_of_time(target: str, tmp_path: Path) -> None:
    command = ["-m", "benchmarks.kernel_compile", "--few", "--models", "qwen3-0.6b", "--targets", target]
    record = tmp_path / "record.jsonl"
    run = subprocess.run(
        [sys.executable, *command, "--record", str(record)],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0", "PYTHONPATH": "src:."},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert {each["kernel"] for each in lines} == launched_kernels()
    # The noise of vLLM's V2 runner is not a kernel of its own.
    assert any("has_murmur=True" in each["tile"] for each in lines)
    assert "none spills, and all fit" in run.stdout
