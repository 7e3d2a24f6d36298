"""The page to send: one run of peers, one engine after another, and the self-test behind it."""

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import vllm_page
from benchmarks.flags import parser
from benchmarks.peers.__main__ import parser as peers_parser
from benchmarks.vllm_page import FLAGS, main, page_text, peers_words
from ssd.cli import machine
from ssd.cli.machine import provenance
from ssd.selftest.results import CheckResult


def options(*words: str) -> Namespace:
    return parser(None, FLAGS).parse_args(["m", "--draft", "d", "--run", "r", *words])


def test_peers_is_told_the_cases_and_to_load_one_at_a_time() -> None:
    words = peers_words(options("--lookahead", "3", "--vllm", "py", "--tensor-parallel-size", "2"))
    told = peers_parser().parse_args(words)
    assert told.peer_cases == ["plain", "draft3", "ssd3"]
    assert told.one_at_a_time
    assert (told.peers, told.ssd_cases, told.turns, told.tensor_parallel_size) == (["vllm"], ["none"], 3, 2)
    assert told.peer_python == ["vllm=py"]


def test_a_page_of_both_and_a_self_test_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test is another process's: here it would keep memory of the GPU that vLLM needs."""
    lines = [
        CheckResult("kernels", "decide", "8 of 8 equal"),
        CheckResult("memory", "bandwidth", "9 GB/s", why="none"),
    ]
    told = json.dumps({"device": "cuda:0", "lines": [asdict(each) for each in lines]})
    program = f"open({str(tmp_path / 'runs')!r}, 'a').write('x'); print({told!r})"

    def never(*_: object) -> None:
        pytest.fail("the device is initialised in the process that starts vLLM")

    def measured(words: list[str]) -> None:
        (Path(words[words.index("--run") + 1]) / "report.md").write_text("# Peers\n\n| vllm | ssd4 | 9.1 |\n")

    monkeypatch.setattr(vllm_page, "SELF_TESTING", (sys.executable, "-c", program))
    monkeypatch.setattr("ssd.selftest.run.SelfTest", never)
    monkeypatch.setattr("torch.cuda._lazy_init", never)
    monkeypatch.setattr(vllm_page, "run_peers", measured)
    for _ in range(2):
        assert main(["m", "--draft", "d", "--run", str(tmp_path)]) == 0
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# vLLM, its own speculation, and SSD inside it")
    assert "| vllm | ssd4 | 9.1 |" in page
    assert "| kernels | decide | ok | 8 of 8 equal |" in page
    assert "9 GB/s (none)" in page
    assert "On cuda:0:" in page
    assert (tmp_path / "runs").read_text() == "x"
    (tmp_path / "selftest.md").unlink()
    assert "Not run." in page_text(tmp_path)


def test_what_hardware_there_is_is_asked_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where GPUs are counted: names of theirs are a line of every record."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda._lazy_init", lambda: pytest.fail("the device is initialised here"))
    monkeypatch.setattr(machine, "_NAME_GPUS", "print('NVIDIA Something')")
    assert provenance().hardware["GPUs"] == "NVIDIA Something"
