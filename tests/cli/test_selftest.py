"""`ssd doctor --selftest`: a verdict a line."""

import json
import re
from collections.abc import Iterator

import pytest
import torch
from typer.testing import CliRunner, Result

from ssd.cli.main import app
from ssd.selftest import run
from ssd.selftest.made_up import MadeUpShape
from ssd.selftest.results import CheckResult, in_words

TARGET = (32, 4096, 14336, 32, 8, 128_256, 128)
DRAFT = (16, 2048, 8192, 32, 8, 128_256, 64)
"""Shapes of Llama-3.1 8B and Llama-3.2 1B."""


def doctor(*flags: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--selftest", "--device", "cpu", *flags])


def test_on_a_cpu_there_are_no_kernels_and_a_draft_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssd.selftest.kernels.can_launch", lambda device: False)
    result = doctor()
    assert result.exit_code == 0, result.output
    assert re.search(r"^kernels +all +not run: torch computes everything", result.stdout, re.M)
    assert re.search(r"^draft +a step of one tree +ok: [\d.]+ (ms|µs), on arrays", result.stdout, re.M)


def test_what_fails_ends_with_1_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device) -> Iterator[CheckResult]:
        yield CheckResult("kernels", "move", "differ", "failed")
        raise OSError("no device")

    monkeypatch.setattr(run, "kernel_results", broken)
    result = doctor("--json")
    assert result.exit_code == 1
    lines = [(each["what"], each["verdict"]) for each in json.loads(result.stdout)["lines"]]
    assert lines == [("move", "failed"), ("ended early", "failed"), ("a step of one tree", "ok")]


@pytest.mark.parametrize(("step", "pays"), [(1.2e-3, True), (6e-3, False)])
def test_a_pair_gets_one_line_by_the_measured_step(
    monkeypatch: pytest.MonkeyPatch, step: float, pays: bool
) -> None:
    """On a GPU; its figures are made up here."""
    pair = MadeUpShape(*TARGET).config, MadeUpShape(*DRAFT).config
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    line = run.whether_it_pays(torch.device("cuda:0"), pair, step, has_mps=False)
    assert line.verdict == "ok"
    assert f"a draft step {1e3 * step:.1f} ms (measured)" in line.found
    assert ("does not pay" in line.found) != pays
    on_cpu = run.whether_it_pays(torch.device("cpu"), pair, step, has_mps=False)
    assert (on_cpu.verdict, on_cpu.found) == ("not run", "on CPUs `ssd bench run` measures it")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an unknown GPU")
    assert run.whether_it_pays(torch.device("cuda:0"), pair, step, has_mps=False).verdict == "not run"


def test_times_in_words() -> None:
    assert [in_words(each) for each in (2.5, 0.0123, 4e-6)] == ["2.5 s", "12.3 ms", "4 µs"]
