"""`ssd doctor`: true of the machine it runs on."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ssd.cli import serve_vllm
from ssd.cli.main import app
from ssd.runtime import cores
from ssd.runtime.cores import usable_cores
from ssd.version import __version__


def doctor(cache: Path) -> str:
    result = CliRunner().invoke(app, ["doctor", "--hf-cache", str(cache)], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_packages_machine_and_what_will_be_used(tmp_path: Path) -> None:
    shown = doctor(tmp_path)
    for word in ("torch", "pyzmq", "msgspec", "fastapi", "threads", "memory", "will use", __version__):
        assert word in shown
    rate = re.search(r"weights are read at\s+│\s+([\d.]+) GB/s", shown)
    assert rate is not None
    assert float(rate[1]) > 0.1
    assert re.search(rf"CPU cores\s+│ {len(usable_cores())}, on \d+ physical", shown)


@pytest.mark.parametrize(
    ("groups", "seats"),
    [
        ([(core, core + 8) for core in range(8)],
         "target on 0,1,2,3,4,5; draft on 6,7; one of each physical core, its sibling (SMT) stays free"),
        ([(0,), (1,)], "target on 0; draft on 1; no siblings (SMT) are known"),
        ([(0, 1)], "target on 0; draft on 1; both on one physical core (SMT): little is gained over mode sd"),
        ([(0,)], "one for target and draft together: nothing is gained over mode sd"),
    ],
)  # fmt: skip
def test_who_would_sit_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[tuple[int, ...]], seats: str
) -> None:
    monkeypatch.setattr(cores, "physical_cores", lambda: groups)
    monkeypatch.setattr(cores, "can_pin", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shown = doctor(tmp_path)
    assert re.search(rf"CPU cores\s+│ {sum(map(len, groups))}, on {len(groups)} physical", shown)
    assert re.search(rf"cores in mode ssd\s+│ {re.escape(seats)}", shown)


def test_instructions_are_those_the_processor_names(tmp_path: Path) -> None:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    shown = doctor(tmp_path)
    for flag, name in {"amx_bf16": "AMX bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}.items():
        assert (name in " ".join(shown.split())) == bool(re.search(rf"\b{flag}\b", flags))


def test_models_in_the_cache_are_listed(tmp_path: Path) -> None:
    assert "none yet" in doctor(tmp_path / "missing")
    snapshot = tmp_path / "models--tiny--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "datasets--some--data").mkdir()
    shown = doctor(tmp_path)
    assert "tiny/model" in shown
    assert "some/data" not in shown


@pytest.mark.parametrize(
    ("installed", "reason", "runner", "words"),
    [
        (False, "", "", "ssd serve --engine vllm \\(pip install vllm\\)\\s+│"),
        (True, "", "", "fits, on its V1 runner; 0.32 was run with it"),
        (True, "vLLM 0.20.0 is too old", "", "vLLM 0.20.0 is too old"),
        (True, "", "1", "needs its V1 runner; unset VLLM_USE_V2_MODEL_RUNNER"),
    ],
)
def test_whether_vllm_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, reason: str, runner: str, words: str
) -> None:
    monkeypatch.setattr(serve_vllm, "is_installed", lambda: installed)
    monkeypatch.setattr(serve_vllm, "why_missing", lambda: reason)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    assert re.search(words, doctor(tmp_path))
