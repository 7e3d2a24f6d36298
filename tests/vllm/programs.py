"""Programs of campaigns/vllm as tests run them, each in a process of its own: vLLM starts but once in one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(
    program: str, record: Path, *options: str | Path, timeout: float, first: Path | None = None
) -> list[dict[str, Any]]:
    """What it recorded. `first` is a folder whose packages come before those that are installed."""
    paths = os.pathsep.join(str(each) for each in (first, ROOT / "src", ROOT) if each is not None)
    subprocess.run(
        [sys.executable, "-m", f"campaigns.vllm.{program}", "--record", str(record), *map(str, options)],
        check=True,
        timeout=timeout,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return [json.loads(line) for line in record.read_text().splitlines()]
