"""README's command for vLLM exactly as it is printed there, on a machine that is idle or half taken.

The small form, with a port of its own and without compilation, is what every test of `served.py` starts.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("openai")
from ssd.processes.host_memory import host_memory
from tests.vllm.served import Served, begin, readme_command, smollm2, until_healthy

PORT = 8000
_HOLD = """
import sys
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
print("held", flush=True)
sys.stdin.read()
"""


def test_the_words_are_readmes_own() -> None:
    words = readme_command(Path("big"), "small")
    assert words[1:] == ["-m", "ssd", "serve", "big", "--draft", "small", "--engine", "vllm"]


@contextlib.contextmanager
def holding(num_bytes: int) -> Iterator[None]:
    """Another process has so much memory."""
    command = [sys.executable, "-c", _HOLD, str(num_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate()


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("taken", [0.0, 0.5])
def test_it_starts_and_answers(tmp_path: Path, taken: float) -> None:
    model = smollm2()
    with holding(int(taken * host_memory().available)):
        process, temporary = begin(tmp_path / "place", readme_command(model, model))
        server = Served(process, PORT, tmp_path / "place/log", temporary)
        try:
            until_healthy(server)
            asked = {"model": str(model), "prompt": "The capital of France is", "max_tokens": 16}
            answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=120)
            assert answer.json()["usage"]["completion_tokens"] == 16
        finally:
            server.end()
