"""The small form of tests.vllm.faults: what happens to a draft, and to the server, harms no request."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")
from tests.vllm.disturbances import Disturbances
from tests.vllm.faults import summary
from tests.vllm.served import smollm2

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def run(folder: Path, record: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.vllm.faults", "--target", str(folder), "--draft", str(folder)]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    return subprocess.run(
        [*command, "--record", str(record), "--tokens", "32", *options],
        timeout=800,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )


def test_neither_kills_nor_freezes_nor_endings_harm(tmp_path: Path) -> None:
    model, record = smollm2(), tmp_path / "record"
    counts = ("--kills", "2", "--freezes", "1", "--endings", "2", "--slow-draft")
    done = run(model, record, *counts)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert done.returncode == 0, [line["wrong"] for line in lines] or done.stderr
    assert [line["case"] for line in lines] == [
        "undisturbed",
        "freeze 0",
        "kill 0",
        "kill 1",
        "ending 0 while starting",
        "ending 1 while serving",
    ]
    for line in lines[1:4]:
        assert line["equal"] == line["requests"] > 0
    assert [line["idle"] for line in lines[1:4]] == [False, False, True]
    # What stands in the record is not run again: this one starts no server.
    again = run(model, record, *counts)
    assert again.stdout == summary(lines) + "\n", again.stderr
    assert len(record.read_text().splitlines()) == len(lines)


@pytest.mark.parametrize(
    ("stalls", "told"),
    [
        ([0.0], []),
        ([5.6, 0.0], []),
        ([5.6, 3.0, 4.0], ["streams stood still for [5.6, 3.0, 4.0] s"]),
    ],
)
def test_a_stall_that_happens_every_time_is_the_drafts(
    stalls: list[float], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that stands still once is not."""
    coming = iter(stalls)

    def once(*_: Any, **__: Any) -> tuple[dict[str, Any], float]:
        return {"wrong": []}, next(coming)

    monkeypatch.setattr(Disturbances, "_disturb_once", once)
    disturbances = Disturbances(server=None, usual=None, num_tokens=1)  # type: ignore[arg-type]
    found = disturbances.freeze(Random(0), idle=False)
    assert found == {"stalls": [each for each in stalls if each], "wrong": told}


def test_what_went_wrong_is_said_by_code_and_words(tmp_path: Path) -> None:
    """Of a record that is complete: no server is started."""
    named = {"target": tmp_path.name, "draft": tmp_path.name, "tokens": 32, "seed": 0}
    told = {"requests": 9, "equal": 9, "longest_gap": 0.1, "wrong": []}
    fine: dict[str, Any] = {"case": "kill 0", "run": named, **told}
    bad = {
        **fine,
        "case": "freeze 0",
        "equal": 8,
        "returned_after_seconds": 11.0,
        "wrong": ["one text is another"],
    }
    record = tmp_path / "record"
    for lines, code in (([fine], 0), ([fine, bad], 1)):
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = run(tmp_path, record, "--kills", "1", "--freezes", str(len(lines) - 1), "--endings", "0")
        assert done.returncode == code, done.stderr
        assert f"{code} went wrong" in done.stdout
    assert "8 of 9 texts equal, back after at most 11.0 s" in done.stdout
