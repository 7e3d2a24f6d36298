"""Programs of campaigns/vllm as tests run them, each in a process of its own: vLLM starts but once in one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BED = ROOT / "tests" / "vllm" / "bed"
V2 = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}


def run(
    program: str,
    record: Path,
    *options: str | Path,
    timeout: float,
    first: Path | None = None,
    is_v2: bool = False,
) -> list[dict[str, Any]]:
    """What it recorded. `first` is a folder whose packages come before those that are installed.

    `is_v2`: with vLLM's V2 model runner, in the stand-in for a GPU.
    """
    folders = (BED if is_v2 else None, first, ROOT / "src", ROOT)
    paths = os.pathsep.join(str(each) for each in folders if each is not None)
    subprocess.run(
        [sys.executable, "-m", f"campaigns.vllm.{program}", "--record", str(record), *map(str, options)],
        check=True,
        timeout=timeout,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, **(V2 if is_v2 else {})},
    )
    return [json.loads(line) for line in record.read_text().splitlines()]
