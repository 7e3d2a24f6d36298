"""The default of OpenMP's waiting: set before torch is loaded, unless the user or vLLM decides."""

import os
import subprocess
import sys

import pytest

from ssd.processes.openmp import leave_to_vllm, wait_briefly

# What torch's own library has read is shown on standard error while it is loaded.
LOAD = "import sys, ssd; assert 'torch' not in sys.modules; import torch; torch.ones(2)"


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP")
@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, "'100'"), ({"GOMP_SPINCOUNT": "7"}, "'7'"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_torch_finds_the_default_or_the_users_setting(own: dict[str, str], expected: str | None) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {**own, "OMP_DISPLAY_ENV": "VERBOSE"}
    shown = subprocess.run(
        [sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=True
    )
    found = [line.split("=")[1].strip() for line in shown.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    assert found
    assert found == [expected] if expected else found != ["'100'"]


def test_vllm_keeps_its_own_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    wait_briefly(environment)
    assert environment
    leave_to_vllm(environment)
    assert not environment
    monkeypatch.setattr("ssd.processes.openmp._ours", set())
    monkeypatch.setitem(sys.modules, "vllm", sys)
    wait_briefly(environment)
    assert not environment
