"""`ssd tune` as users run it: on real engines, and its file taken by the server."""

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from ssd.cli.main import app
from tests.tiny import cut_layers


@pytest.fixture(scope="module")
def tuned(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    draft = cut_layers(tiny_llama, 2, folder / "draft")
    prompts = folder / "prompts.jsonl"
    texts = ["The quick brown fox", "Once upon a time", "def add(a, b):", "for i in range"]
    prompts.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    out = folder / "tuned.yaml"
    few = ("--num-prompts", 4, "--max-tokens", 16, "--confirm", 1)
    for _ in range(4):  # Beside other tests its measurements may contradict each other, and it says so.
        words = ("tune", tiny_llama, "--draft", draft, "--prompts", prompts, "--out", out, *few)
        done = CliRunner().invoke(app, list(map(str, words)))
        if "cannot be right" not in done.stderr:
            break
    assert done.exit_code == 0, done.output
    assert "written to" in done.stdout
    # The table has them; a second time they are in the file only.
    assert "measured: " not in done.stdout
    assert "# measured: " in out.read_text()
    return out


def test_the_file_says_what_was_found_and_why(tuned: Path) -> None:
    settings = yaml.safe_load(tuned.read_text())
    assert settings["mode"] in ("ar", "sd", "ssd")
    assert ("draft" in settings) == (settings["mode"] != "ar")
    assert re.search(r"# .*(does not pay|as fast as plain)", tuned.read_text())


def test_serve_takes_the_file(tuned: Path) -> None:
    """In the mode it names; here with a draft whatever was found, since tiny models seldom pay."""
    settings = yaml.safe_load(tuned.read_text())
    draft = {**settings.get("draft", {}), "model": str(tuned.parent / "draft"), "width": 8}
    settings |= {"mode": "ssd", "draft": draft, "lookahead": 6}
    tuned.with_name("full.yaml").write_text(yaml.safe_dump(settings))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = tuned.with_name("full.yaml")
    command = [sys.executable, "-m", "ssd", "serve", "--config", str(file), "--port", str(port)]
    with tuned.with_name("log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        _await(f"{url}/ready", server)
        asked = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 8
    finally:
        server.terminate()
        server.wait(60)


def _await(url: str, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(1200):
        assert server.poll() is None
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the server did not start")


def test_a_file_of_prompts_is_taken_as_it_is(tmp_path: Path) -> None:
    from ssd.cli.tune import TuneOptions

    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"prompt {place}"}) for place in range(14)))
    assert [len(half) for half in TuneOptions(prompts=file).texts()] == [7, 7]
    assert [len(half) for half in TuneOptions(prompts=file, num_prompts=6).texts()] == [3, 3]
    file.write_text("\n".join(json.dumps({"text": f"prompt {place}"}) for place in range(3)))
    with pytest.raises(ValueError, match="3 prompts are too few to tune with"):
        TuneOptions(prompts=file).texts()
