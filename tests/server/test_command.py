"""`ssd serve` as users start it."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.server.process import free_port


def ssd(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ssd", "serve", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_it_serves_until_it_is_told_to_end(tiny_llama: Path) -> None:
    settings = ("--served-model-name", "mine", "--api-key", "secret", "--log-level", "debug")
    process = ssd(str(tiny_llama), "--port", "0", *settings)
    headers = {"Authorization": "Bearer secret"}
    assert process.stderr is not None
    try:
        # A free port, and the log says which.
        url = next(found for line in process.stderr if (found := re.search(r"ready: .*(http\S+:\d+)", line)))[
            1
        ]
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers=headers).json()["data"][0]["id"] == "mine"
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "secret" not in said
    assert [
        line["status"] for line in map(json.loads, said.splitlines()) if line.get("path") == "/health"
    ] == [200]


def test_a_missing_model_is_one_sentence(tmp_path: Path) -> None:
    process = ssd(str(tmp_path / "nothing"), "--port", str(free_port()))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "error: no model at" in said
    assert "Traceback" not in said


_WITHOUT_TOKENIZER = """
import ssd.worker.async_llm as async_llm
def fail(model):
    raise ValueError(f"{model} is gone: bring it back")
async_llm.open_checkpoint = fail
from ssd.cli.main import app
app()
"""


def test_a_server_that_cannot_get_ready_ends(tiny_llama: Path) -> None:
    """The engine has loaded, and then the server's own part fails."""
    command = [sys.executable, "-c", _WITHOUT_TOKENIZER, "serve", str(tiny_llama), "--port", str(free_port())]
    process = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert process.returncode == 2
    assert "is gone: bring it back" in process.stderr
    assert "Traceback" not in process.stderr
