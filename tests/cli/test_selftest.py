"""`ssd doctor --selftest`: a verdict a line, and a record that a plan can read."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from ssd.cli.main import app
from ssd.config import Mode
from ssd.engine.outputs import EngineStats, SpeculationStats
from ssd.planning.measured import SelfTestRecord, read_measured
from ssd.runtime.kernel_checks import KernelCheckResult
from ssd.selftest import kernels, run
from ssd.selftest.made_up import MadeUpShape
from ssd.selftest.modes import ModeRun, mode_results
from ssd.selftest.results import CheckResult, at_most, in_words, tried

TARGET = (32, 4096, 14336, 32, 8, 128_256, 128)
DRAFT = (16, 2048, 8192, 32, 8, 128_256, 64)
"""Shapes of Llama-3.1 8B and Llama-3.2 1B."""


def doctor(*flags: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--selftest", "--device", "cpu", *flags])


def test_a_page_on_a_cpu_within_a_minute(tmp_path: Path) -> None:
    result = doctor("--record", str(tmp_path / "measured.json"))
    assert result.exit_code == 0, result.output
    shown = result.stdout
    assert "a small form" in shown
    for kernel in ("attention", "move", "decide", "children"):
        assert re.search(
            rf"^kernels +{kernel} +ok: \d+ of \d+ equal \(a few scenes, interpreted\)", shown, re.M
        )
    assert re.search(r"^captured steps +recorded and replayed +ok: 10 of 10 steps", shown, re.M)
    for mode in ("sd", "ssd"):
        assert re.search(rf"^modes +{mode} +ok: 6 of 6 texts as mode ar writes them", shown, re.M)
    for what in (
        "host +a step",
        "memory +bandwidth",
        "launches +one by one",
        "forwards +T_v",
        "forwards +T_d",
        "draft +a step of one tree",
        "sampler +T = 0.7, top_p = 0.9",
    ):
        assert re.search(rf"^{what}.*(ok|slower than expected): ", shown, re.M)
    assert re.search(r"T_v.*1: .* 2: .* 4: .* 8: .* 16: ", shown)
    assert re.search(r"within a graph +not run", shown)
    assert not re.search("^SSD", shown, re.M)
    found = read_measured(tmp_path / "measured.json")
    assert found.device == "cpu"
    assert found.captured_launch is None
    assert set(found.target_seconds) == set(found.draft_seconds) == {1, 2, 4, 8, 16}
    assert found.target_seconds[1] > found.draft_seconds[1] > 0
    assert found.bandwidth > 1e8


def test_what_fails_ends_with_1_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = KernelCheckResult("decide", "a scene", 3.0, 0.0)
    monkeypatch.setattr(kernels, "_interpreted", lambda: [wrong, replace(wrong, kernel="move", worst=0.0)])

    def lost(*_: object) -> dict[Mode, ModeRun]:
        raise RuntimeError("the draft did not start")

    monkeypatch.setattr(run, "run_modes", lost)
    result = doctor()
    assert result.exit_code == 1
    assert re.search(
        r"decide +failed: replaced by its torch form: 0 of 1.*a scene: differs by 3", result.stdout
    )
    assert re.search(r"move +ok: 1 of 1", result.stdout)
    assert re.search(r"captured steps +recorded and replayed +ok", result.stdout)
    assert "RuntimeError: the draft did not start" in result.stdout
    refused = doctor("--record", str(tmp_path / "record.json"))
    assert refused.exit_code == 2
    assert not (tmp_path / "record.json").exists()


def a_run(*texts: tuple[int, ...], accepted: int = 3) -> ModeRun:
    speculation = SpeculationStats(rounds=4, drafted=6, accepted=accepted)
    return ModeRun(list(texts), EngineStats(speculation, 4, 1.0, 0.5, 0.1, None))


@pytest.mark.parametrize(
    ("speculative", "verdict"),
    [
        (a_run((1, 2), (3, 4)), "ok"),
        (a_run((1, 2), (3, 5)), "failed"),
        (a_run((1, 2), (3, 4), accepted=0), "failed"),
    ],
)
def test_a_mode_that_changes_a_token_or_shows_nothing_fails(speculative: ModeRun, verdict: str) -> None:
    runs: dict[Mode, ModeRun] = {"ar": a_run((1, 2), (3, 4)), "sd": speculative, "ssd": speculative}
    assert [line.verdict for line in mode_results(runs)] == [verdict, verdict]
    assert speculative.host_seconds == pytest.approx(0.1)


@pytest.mark.parametrize(("step", "pays"), [(1.2e-3, True), (6e-3, False)])
def test_a_pair_gets_one_line_by_the_measured_step(
    monkeypatch: pytest.MonkeyPatch, step: float, pays: bool
) -> None:
    """On a GPU; its figures are made up here."""
    target, draft = (MadeUpShape(*each).config for each in (TARGET, DRAFT))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    test = run.SelfTest(torch.device("cuda:0"), (target, draft))
    assert test._pay_off((target, draft), step).verdict == "not run"
    test.measured = SelfTestRecord(
        device="NVIDIA H100 80GB HBM3", bandwidth=3e12, launch=5e-6, captured_launch=1.5e-6,
        launches_per_layer=20, launches_beside=5, host=0.0, target_seconds={1: 1.0}, draft_seconds={1: 1.0},
    )  # fmt: skip
    line = test._pay_off((target, draft), step)
    assert line.verdict == "ok"
    assert f"a draft step {1e3 * step:.1f} ms (measured)" in line.found
    assert ("does not pay" in line.found) != pays
    on_cpu = run.SelfTest(torch.device("cpu"), (target, draft))._pay_off((target, draft), step)
    assert (on_cpu.verdict, on_cpu.found) == ("not run", "on CPUs `ssd bench run` measures it")


def test_times_in_words_and_what_is_slow() -> None:
    assert [in_words(each) for each in (2.5, 0.0123, 4e-6)] == ["2.5 s", "12.3 ms", "4 µs"]
    assert at_most("a", "b", 1.9, 1.0, "").verdict == "ok"
    assert at_most("a", "b", 2.1, 1.0, "").verdict == "slower than expected"

    def broken() -> list[CheckResult]:
        raise OSError("no device")

    (line,) = tried("part", broken)
    assert line.is_failure
    assert "no device" in line.why
