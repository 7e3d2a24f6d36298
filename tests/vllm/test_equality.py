"""A real vLLM, a real draft: the same tokens as without it, hits, and a draft that dies and comes back."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.models]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder() -> Path:
    """SmolLM2 as a folder: vLLM reads no GGUF."""
    if find_spec("vllm") is None:
        pytest.skip("no vLLM")
    found = Path(os.environ.get("SSD_TEST_MODELS", ".")) / "folders" / "smollm2"
    if not (found / "config.json").is_file():
        pytest.skip(f"no folder {found}")
    return found


def run(folder: Path, record: Path, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.vllm.equality", "--target", str(folder), "--draft", str(folder)]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    subprocess.run(
        [*command, "--record", str(record), "--prompts", "3", "--tokens", "16", "--patience", "1", *options],
        check=True,
        timeout=800,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_every_token_is_the_same_with_and_without_the_draft(folder: Path, tmp_path: Path) -> None:
    found = run(folder, tmp_path / "record", "--temperatures", "0", "0.7", "--faults", "1")
    assert [each["case"] for each in found] == [
        "T=0.0 seeded",
        "T=0.7 seeded",
        "T=0.7 unseeded",
        "grammar",
        "truncated, penalties, minimum",
        "fault 0",
    ]
    for each in found:
        assert each["equal"] == each["texts"], each
        assert each["hits"] > 0, each
    assert all(each["accepted"] > 0 for each in found[:-1])
    assert found[-1]["hits while away"] == 0


def test_padded_proposals_change_no_token(folder: Path, tmp_path: Path) -> None:
    found = run(folder, tmp_path / "record", "--temperatures", "0.7", "--padded", "--lookahead", "2")
    for each in found:
        assert each["equal"] == each["texts"], each
    assert sum(each["padding"] for each in found) > 0
