"""Models by their name on the hub, against a small hub of our own on a real socket."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
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


_COMMANDS = """
import json, sys
from typer.testing import CliRunner
from ssd.cli.main import app
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words)
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""


def generated(endpoint: str, cache: Path, *commands: Sequence[str]) -> list[tuple[int, str, str]]:
    """Exit code and outputs of each `ssd generate`, one after the other in one process."""
    said = [["generate", *words, "--prompt", "The quick", "--max-tokens", "3"] for words in commands]
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS, json.dumps(said)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=environment(endpoint, cache),
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


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


REFUSED = {
    "tiny/unknown": "no model of that name on the hub",
    "tiny/gated": "tiny/gated is gated: accept its terms on",
    "tiny/model@v9": "tiny/model has no revision 'v9'",
    "tiny/model/missing.gguf": "tiny/model has no file 'missing.gguf'",
}


def test_a_model_is_fetched_once_and_then_found_without_a_network(hub: FakeHub, tmp_path: Path) -> None:
    """So is a draft. What the hub refuses, or is not in the cache then, is refused with a remedy."""
    here, empty = tmp_path / "cache", tmp_path / "empty"
    with_draft = ["tiny/model", "--draft", "tiny/model", "--mode", "sd"]
    fetched, drafted, *refused = generated(
        hub.url, here, ["tiny/model"], with_draft, *([model] for model in REFUSED)
    )
    assert fetched[0] == 0, fetched
    assert any("model.safetensors" in path for path in hub.asked)
    assert not any("pickle.bin" in path for path in hub.asked)
    assert drafted[0] == 0, drafted
    assert "tokens a round" in drafted[2]
    for (code, _, said), message in zip(refused, REFUSED.values(), strict=True):
        assert code == 2, said
        assert message in said
    found, missing = generated(NOWHERE, here, ["tiny/model"], ["tiny/model", "--hf-cache", str(empty)])
    assert found[:2] == fetched[:2], found
    assert missing[0] == 2
    assert f"tiny/model is not in the cache ({empty}) and the hub cannot be reached" in missing[2]


def test_a_server_gets_ready_and_keeps_the_name_it_was_given(hub: FakeHub, tmp_path: Path) -> None:
    body = {"model": "tiny/model", "prompt": "The quick", "max_tokens": 3, "temperature": 0}
    with served("tiny/model", hub.url, tmp_path) as url:
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny/model"
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "length"


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
