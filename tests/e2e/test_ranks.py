"""A draft over two ranks: the frames of one, the same texts, and an end that is an end. More by command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ssd import LLM
from tests.e2e.process_faults import PROMPTS, Slow, params
from tests.tiny import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("medium", tmp_path_factory.mktemp("model"))


def test_frames_are_those_of_one_rank(model: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.e2e.rank_frames", str(model)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["nodes"] > 200
    assert found["worst"] < 1e-4


def test_texts_are_the_targets_own_and_hits_come(model: Path) -> None:
    with LLM(str(model), device="cpu", deterministic=True, show_progress=False) as plain:
        expected = [each.outputs for each in plain.generate(PROMPTS, params(3, 40), use_tqdm=False)]
    draft = {"model": str(model), "device": "cpu", "tensor_parallel_size": 2}
    with LLM(
        str(model), mode="ssd", draft=draft, device="cpu", deterministic=True, show_progress=False
    ) as llm:
        decoder: Any = llm._engine.core._decoder
        decoder._runner = Slow(decoder._runner, 0.05)
        found = [each.outputs for each in llm.generate(PROMPTS, params(3, 40), use_tqdm=False)]
        assert llm.stats.speculation.accepted > 0
    assert found == expected


def test_two_kills_change_nothing_and_leave_nobody() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.e2e.rank_faults", "--kills", "2"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 kills: 0 texts changed, 0 processes left behind" in run.stdout
