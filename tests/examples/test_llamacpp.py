"""llama.cpp as a target of a real `ssd draft` (examples/llamacpp), in TypeScript, from docs/protocol.md.

Needs Node.js and the packages that `.ci/install_llamacpp` installs, or those of the example's own folder.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from ssd.draft.protocol.messages import tokenizer_fingerprint
from ssd.models.checkpoint import open_checkpoint
from tests.conftest import real_model
from tests.e2e.drafts import Drafts

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/llamacpp"
PROMPTS = ("def fibonacci(n):\n    ", "Once upon a time", "The capital of France is")
pytestmark = pytest.mark.models


def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("no Node.js")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < 20:
        pytest.skip(f"Node.js {version}: 20 or newer is needed")
    return found


def packages() -> Path:
    venv = Path(os.environ.get("SSD_CI_VENV", ".venv-ci"))
    for folder in (EXAMPLE, ROOT / venv / "llamacpp"):
        if (folder / "node_modules/node-llama-cpp").is_dir():
            return folder / "node_modules"
    pytest.skip("no npm packages of examples/llamacpp: run .ci/install_llamacpp .venv-ci/llamacpp")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled example; compiling checks its types."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(
        EXAMPLE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules", "dist")
    )
    (folder / "node_modules").symlink_to(packages())
    compiler = folder / "node_modules/typescript/bin/tsc"
    run = subprocess.run([node(), compiler], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    return folder / "dist"


@pytest.fixture
def draft(smollm2: Path, tmp_path: Path) -> Iterator[Drafts]:
    drafts = Drafts({"draft": smollm2}, tmp_path, "--kv-cache-bytes", str(64 << 20))
    yield drafts
    drafts.close()


def target(built: Path, model: Path, address: str, *options: str) -> "subprocess.Popen[str]":
    command = [node(), str(built / "main.js"), "--target", str(model), "--draft", address]
    command += ["--threads=1", "--gpu=false", "--start-seconds=120", "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def prompts(*texts: str) -> list[str]:
    return [each for text in texts for each in ("--prompt", text)]


def report(stdout: IO[str] | None) -> dict[str, Any]:
    assert stdout is not None
    found: dict[str, Any] = json.loads(stdout.readline())
    return found


def test_tokens_are_those_without_a_draft_also_where_it_is_killed(
    built: Path, smollm2: Path, draft: Drafts
) -> None:
    # It waits for the draft as long as it takes: machines that run tests are slow now and then.
    options = ("--tokens=24", "--wait-ms=60000", "--check")
    process = target(built, smollm2, draft.addresses, *options, *prompts(*PROMPTS))
    with process:
        try:
            first = report(process.stdout)
            draft.strike("draft", signal.SIGKILL)
            second = report(process.stdout)
            draft.start("draft")
            third = report(process.stdout)
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert first["equal"]
    assert second["equal"]
    assert third["equal"]
    # The draft is the same model: as long as it is there, most of what it guesses is accepted.
    assert first["accepted"] > first["rounds"] / 4
    assert third["accepted"] > third["rounds"] / 4
    assert second["unheard"] > 0
    assert log.count("draft connected") == 2
    assert log.count("draft lost") == 1


def test_it_keeps_the_rules_of_the_protocol(built: Path, smollm2: Path, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/kit.sock"
    texts = prompts(*(f"Chapter {number}. Once upon a time" for number in range(1000)))
    process = target(built, smollm2, address, "--tokens=200", "--wait-ms=0", "--least-rows=1", *texts)
    with process:
        try:
            command = [sys.executable, "-m", "ssd.draft.conformance", "--target", address]
            run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        finally:
            process.kill()
    assert run.returncode == 0, run.stdout + run.stderr
    assert "not exercised" not in run.stdout


@pytest.mark.parametrize("name", ["smollm2", "qwen-target"])
def test_fingerprint_is_that_of_the_draft(built: Path, name: str) -> None:
    model = real_model(name)
    code = (
        f"import {{ readVocabulary }} from {json.dumps(str(built / 'gguf.js'))};"
        f"console.log(JSON.stringify(await readVocabulary({json.dumps(str(model))})));"
    )
    command = [node(), "--input-type=module", "--eval", code]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    checkpoint = open_checkpoint(str(model))
    assert said == {
        "fingerprint": tokenizer_fingerprint(checkpoint.tokenizer()),
        "size": checkpoint.config.vocab_size,
    }
