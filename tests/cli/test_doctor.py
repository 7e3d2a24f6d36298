"""`ssd doctor`: true of the machine it runs on."""

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ssd.cli import diagnosis, machine, serve_vllm, vllm_memory
from ssd.cli.main import app
from ssd.cli.pair_facts import pair_facts
from ssd.processes.other_load import OtherLoad
from ssd.runtime import cores
from ssd.runtime.cores import usable_cores
from ssd.version import __version__
from tests.tiny import write_checkpoint


@pytest.fixture(autouse=True)
def _rate_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring it takes seconds."""
    monkeypatch.setattr(machine, "reading_rate", lambda cores: cores * 1e9)
    monkeypatch.setattr(OtherLoad, "share", lambda _load: 0.0)


def doctor(cache: Path, *flags: str) -> str:
    result = CliRunner().invoke(app, ["doctor", "--hf-cache", str(cache), *flags], env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    return result.stdout


def told(cache: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(doctor(cache, "--json"))
    return found


def test_packages_machine_and_what_will_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # Here it is measured.
    shown = doctor(tmp_path)
    for word in ("torch", "pyzmq", "msgspec", "fastapi", "threads", "memory", "will use", __version__):
        assert word in shown
    assert ("llama.cpp" in shown) != torch.cuda.is_available()
    rate = re.search(r"weights are read at\s+│\s+([\d.]+) GB/s", shown)
    assert "this machine was busy" in shown or (rate is not None and float(rate[1]) > 0.1)
    assert re.search(rf"CPU cores\s+│ {len(usable_cores())}, on \d+ physical", shown)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.34, "not known: this machine was busy, other programs took 34% of the cores' time; end them"),
        (None, "; whether other programs computed meanwhile cannot be told here"),
        (0.02, "GB/s"),
    ],
)
def test_a_rate_measured_beside_other_programs_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float | None, said: str
) -> None:
    monkeypatch.setattr(OtherLoad, "share", lambda _load: share)
    monkeypatch.setattr(diagnosis, "_WORTH_ALL_CORES", 1e9)
    rates = told(tmp_path)["machine"]["weights are read at"]
    assert said in rates
    assert ("GB/s" in rates) is (share != 0.34)
    assert ("told here" in rates) is (share is None)


def test_json_tells_what_the_tables_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: "1 GiB [free]")
    found, shown = told(tmp_path), doctor(tmp_path)
    assert (found["ssd"], found["python"]) == (__version__, platform.python_version())
    assert (found["hub_cache"], found["models"]) == (str(tmp_path), [])
    assert f"will use            │ {found['device']}, {found['dtype']}" in shown
    assert {"torch", "vllm"} <= {each["name"] for each in found["packages"]}
    for each in found["packages"]:
        assert re.search(
            rf"│ {re.escape(each['name'])} +│ {re.escape(each['version'] or 'not installed')} ", shown
        )
    words = " ".join(re.sub("[│\n]", " ", shown).split())
    for what, said in found["machine"].items():
        assert f"{what} {said}" in words


def test_the_other_project_of_that_name_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0"}
    monkeypatch.setattr(diagnosis, "_version", versions.get)
    assert "uninstall" not in doctor(tmp_path)
    versions["ssd"] = "1.0.0"
    other = told(tmp_path)["packages"][-1]
    assert (other["name"], other["version"], other["trouble"]) == ("ssd", "1.0.0", "pip uninstall ssd")
    assert "pip uninstall ssd" in doctor(tmp_path)


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


def test_models_in_the_cache_are_listed(tmp_path: Path) -> None:
    assert "none yet" in doctor(tmp_path / "missing")
    snapshot = tmp_path / "models--tiny--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "datasets--some--data").mkdir()
    shown = doctor(tmp_path)
    assert "tiny/model" in shown
    assert "some/data" not in shown
    assert told(tmp_path)["models"] == [{"name": "tiny/model", "bytes": 2}]


@pytest.mark.parametrize(
    ("installed", "reason", "runner", "words"),
    [
        ("", "", "", "ssd serve --engine vllm \\(pip install vllm\\)\\s+│"),
        ("0.33.0", "", "", "fits, on its V1 runner\\s+│"),
        ("0.20.0", "vLLM 0.20.0 is too old", "", "vLLM 0.20.0 is too old"),
        ("0.33.0", "", "1", "fits, on its V2 runner\\s+│"),
        ("0.99.0", "", "", "fits, on its V1 runner: vLLM 0.99.0 has every name that SSD uses, but was never"),
    ],
)
def test_whether_vllm_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, reason: str, runner: str, words: str
) -> None:
    monkeypatch.setattr(serve_vllm, "is_installed", lambda: bool(installed))
    monkeypatch.setattr(serve_vllm, "why_missing", lambda: reason)
    monkeypatch.setattr(diagnosis, "installed_version", lambda: installed)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    assert re.search(words, doctor(tmp_path))


def test_who_would_sit_where_before_anything_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(write_checkpoint("medium", tmp_path / "model"))
    monkeypatch.setattr(
        machine, "free_memory", lambda: {"cuda:0": 800 << 30, "cuda:1": 1 << 20, "cpu": 8 << 30}
    )
    shown = doctor(tmp_path, "--model", model, "--draft", model)
    words = " ".join(re.sub("[│\n]", " ", shown).split())
    assert re.search(
        r"target cuda:0: 0\.\d\d GiB of weights, \d+\.\d\d GiB of KV; fits, \d+\.\d\d GiB to spare", words
    )
    assert re.search(
        r"draft cuda:1: .* does not fit: 0\.\d\d GiB wanted, 0\.\d\d GiB of 0\.\d\d GiB usable", words
    )
    assert "inside vLLM" not in words
    alone = CliRunner().invoke(app, ["doctor", "--draft", model])
    assert alone.exit_code == 2
    assert "--model" in alone.output


def test_a_draft_of_another_tokenizer_does_not_fit(tmp_path: Path) -> None:
    """As the two would find out when they greet each other."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        write_checkpoint("llama3", folder)
    target, other = map(str, folders)
    cache = tmp_path / "cache"
    cache.mkdir()
    assert "the draft's tokens mean what the target's do" in doctor(
        cache, "--model", target, "--draft", other
    )
    file = folders[1] / "tokenizer.json"
    file.write_text(_with_two_tokens_swapped(json.loads(file.read_text())))
    said = " ".join(doctor(cache, "--model", target, "--draft", other).replace("│", " ").split())
    assert "does not fit: other cannot draft for one: their tokenizers differ" in said


def _with_two_tokens_swapped(tokenizer: dict[str, Any]) -> str:
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[5:7]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    return json.dumps(tokenizer)


def test_the_compiler_that_triton_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert "install gcc and libc6-dev, or set CC" in machine.compiler()
    compiler = tmp_path / "gcc"
    compiler.write_text("")
    compiler.chmod(0o755)
    assert machine.compiler() == str(compiler)
    monkeypatch.setenv("CC", "nothing-here")
    assert machine.compiler().startswith("nothing-here: kernels cannot be launched")


def test_on_one_gpu_it_says_what_fits_inside_vllm_and_whether_it_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(write_checkpoint("medium", tmp_path / "model"))
    free = {"cuda:0": 23 << 30, "cpu": 8 << 30}
    monkeypatch.setattr(machine, "free_memory", lambda: free)
    monkeypatch.setattr(machine, "gpu_names", lambda: ["NVIDIA GeForce RTX 4090"])
    monkeypatch.setattr(machine, "has_mps", lambda: False)
    monkeypatch.setattr(serve_vllm, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(vllm_memory, "_gpu_memory", lambda gpu: (23 << 30, 24 << 30))
    facts = pair_facts(model, model, str(tmp_path), lambda _: None)
    assert facts["inside vLLM"].startswith("vLLM on GPU 0; the draft on GPU 0, which they share")
    assert "--gpu-memory-utilization 0." in facts["inside vLLM"]
    assert "does not pay: " in facts["SSD"]
    assert "on the same GPU, without MPS" in facts["SSD"]
    monkeypatch.setattr(vllm_memory, "_gpu_memory", lambda gpu: (1 << 30, 24 << 30))
    assert "does not fit: " in pair_facts(model, model, str(tmp_path), lambda _: None)["inside vLLM"]
    monkeypatch.setattr(machine, "gpu_names", lambda: ["Unheard of"])
    facts = pair_facts(model, model, str(tmp_path), lambda _: None)
    assert facts["SSD"].startswith("no data sheet of Unheard of is known")


def test_the_driver_and_a_torch_that_does_not_fit_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.driver() == ""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 550.54.15\n")
    program.chmod(0o755)
    assert machine.driver().startswith("550.54.15, and torch sees no GPU: torch is built for CUDA")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert machine.driver().startswith("550.54.15; torch is built for CUDA")


def test_mps_runs_if_its_daemon_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert machine.mps().startswith("does not run")
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    assert machine.mps().startswith("runs")
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text("999999999")
    assert "nvidia-cuda-mps-control -d" in machine.mps()
