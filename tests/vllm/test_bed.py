"""What the stand-in for a GPU replaces in vLLM gives what vLLM's kernels give in Triton's interpreter."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.vllm


def test_replaced_kernels_give_the_same_bits() -> None:
    if find_spec("vllm") is None:
        pytest.skip("no vLLM")
    paths = os.pathsep.join(map(str, (ROOT / "tests/vllm/bed", ROOT / "src", ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.bed_check"],
        check=True,
        timeout=300,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1", "PYTHONPATH": paths},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    # Of float32, whose sums over a row are added up in another order.
    assert found.pop("logprobs") < 1e-5
    assert found == dict.fromkeys(found, True)
    assert len(found) == 5
