"""`ssd draft` as a program: where it is before it computes anything, and how it ends while it loads."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.process import until

_WHERE_TORCH_IS_IMPORTED = """
import os, sys
from importlib.abc import MetaPathFinder

class Witness(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print("cores", sorted(os.sched_getaffinity(0)), flush=True)

sys.meta_path.insert(0, Witness())
from ssd.cli.main import app
sys.argv = ["ssd", "draft", *sys.argv[1:]]
app()
"""


def run(*options: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "none.gguf").touch()  # A path that leads nowhere is refused before torch is imported.
    command = [sys.executable, "-c", _WHERE_TORCH_IS_IMPORTED, "--model", str(folder / "none.gguf")]
    return subprocess.run(
        [*command, "--listen", f"ipc://{folder}/draft.sock", *options], capture_output=True, text=True
    )


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not pin")
def test_a_draft_is_on_its_cores_before_torch_counts_them(tmp_path: Path) -> None:
    """MKL visits every core it may use: on that of a busy target a restart took two minutes."""
    last = max(os.sched_getaffinity(0))
    assert f"cores [{last}]" in run("--cores", str(last), folder=tmp_path).stdout


def test_a_draft_that_loads_ends_at_once(tiny_llama: Path, tmp_path: Path) -> None:
    """Its weights never come: only the signal can end it."""
    model, place = tmp_path / "model", tmp_path / "draft.sock"
    shutil.copytree(tiny_llama, model)
    for weights in model.glob("*.safetensors"):
        weights.unlink()
        os.mkfifo(weights)
    command = [sys.executable, "-m", "ssd", "draft", "--model", str(model), "--listen", f"ipc://{place}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until(place.exists, seconds=120)
        process.send_signal(signal.SIGINT)
        # Before, it noted the signal for a loop that was never reached.
        assert process.wait(60) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.communicate()
