"""What campaigns.vllm.faults says of a record, and a server that is ended while it starts.

Its disturbances are run by test_serve.py, on the server of that file.
"""

import json
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")
from benchmarks.served import smollm2
from campaigns.vllm.disturbances import Disturbances
from campaigns.vllm.endings import end_while_starting, started
from campaigns.vllm.faults import parsed, run

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(900)]


def test_an_end_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    """While vLLM is imported: the draft runs by then."""
    model = smollm2()
    with started(tmp_path, (model, model)) as server:
        found = end_while_starting(server, signal.SIGTERM, seconds=8.0)
    assert not found["wrong"]
    assert not found["healthy"]


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


def test_what_went_wrong_is_said_by_code_and_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    options = ("--target", tmp_path, "--draft", tmp_path, "--record", record, "--tokens", 32, "--endings", 0)
    for lines, code in (([fine], 0), ([fine, bad], 1)):
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))
        counts = ("--kills", 1, "--freezes", len(lines) - 1)
        assert run(parsed([str(each) for each in (*options, *counts)])) == code
        assert f"{code} went wrong" in (said := capsys.readouterr().out)
    assert "8 of 9 texts equal, back after at most 11.0 s" in said
