"""Models by their name on the hub, against a small hub of our own on a real socket."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from ssd.models.hub import model_title
from ssd.models.names import HubName, parse_hub_name
from tests.cli.fake_hub import FakeHub
from tests.server.process import free_port, until

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def hub(tiny_llama: Path) -> Iterator[FakeHub]:
    (tiny_llama / "pickle.bin").write_bytes(b"never fetched")
    served = FakeHub(tiny_llama)
    yield served
    served.shutdown()
    (tiny_llama / "pickle.bin").unlink()


def environment(endpoint: str, cache: Path) -> dict[str, str]:
    settings = {"HF_ENDPOINT": endpoint, "SSD_HF_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1"}
    return {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | settings


def generate(model: str, endpoint: str, cache: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = ["generate", model, "--prompt", "The quick", "--max-tokens", "3", *more]
    return subprocess.run(
        [sys.executable, "-m", "ssd", *command],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(endpoint, cache),
    )


@contextmanager
def served(model: str, endpoint: str, cache: Path) -> Iterator[str]:
    """The address of a server that is ready."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "ssd", "serve", model, "--port", str(port)], env=environment(endpoint, cache)
    )
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, "it ended"
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/ready").status_code == 200
        return False

    try:
        until(is_ready, seconds=180)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def test_a_model_is_fetched_once_and_then_found_without_a_network(hub: FakeHub, tmp_path: Path) -> None:
    fetched = generate("tiny/model", hub.url, tmp_path)
    assert fetched.returncode == 0, fetched.stderr
    assert any("model.safetensors" in path for path in hub.asked)
    assert not any("pickle.bin" in path for path in hub.asked)
    found = generate("tiny/model", NOWHERE, tmp_path)
    assert (found.returncode, found.stdout) == (0, fetched.stdout), found.stderr


def test_a_draft_is_found_by_name_too(hub: FakeHub, tmp_path: Path) -> None:
    result = generate("tiny/model", hub.url, tmp_path, "--draft", "tiny/model", "--mode", "sd")
    assert result.returncode == 0, result.stderr
    assert "tokens a round" in result.stderr


def test_a_server_gets_ready_and_keeps_the_name_it_was_given(hub: FakeHub, tmp_path: Path) -> None:
    body = {"model": "tiny/model", "prompt": "The quick", "max_tokens": 3, "temperature": 0}
    with served("tiny/model", hub.url, tmp_path) as url:
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny/model"
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tiny/unknown", "no model of that name on the hub"),
        ("tiny/gated", "tiny/gated is gated: accept its terms on"),
        ("tiny/model@v9", "tiny/model has no revision 'v9'"),
        ("tiny/model/missing.gguf", "tiny/model has no file 'missing.gguf'"),
    ],
)
def test_what_the_hub_refuses_is_said_with_a_remedy(
    hub: FakeHub, tmp_path: Path, model: str, message: str
) -> None:
    result = generate(model, hub.url, tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_offline_says_where_it_looked(tmp_path: Path) -> None:
    result = generate("tiny/model", NOWHERE, tmp_path)
    assert result.returncode == 2
    assert f"tiny/model is not in the cache ({tmp_path}) and the hub cannot be reached" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B", None, None)),
        ("a/b@main", HubName("a/b", None, "main")),
        ("a/b/q4.gguf", HubName("a/b", "q4.gguf", None)),
        ("a/b/sub/q4.gguf@v1", HubName("a/b", "sub/q4.gguf", "v1")),
        ("/nowhere", None),
        ("./a/b", None),
        ("~/a", None),
        ("a/b.gguf", None),
        ("a/b/c", None),
        ("plain", None),
        ("../b", None),
    ],
)
def test_names_on_the_hub(text: str, name: HubName | None) -> None:
    assert parse_hub_name(text) == name


def test_a_folder_goes_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert model_title(str(tmp_path / "org" / "name")) == "name"
    assert model_title("org/name") == "org/name"
