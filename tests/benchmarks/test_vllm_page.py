"""The page to send: one run of peers, one engine after another, and the self-test behind it."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import vllm_page
from benchmarks.flags import parser
from benchmarks.peers.__main__ import parser as peers_parser
from benchmarks.vllm_page import FLAGS, main, page_text, peers_words
from ssd.selftest.lines import Line


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
    tests: list[int] = []

    class Tried:
        device = "cpu"

        def __init__(self, _device: object) -> None:
            tests.append(1)

        def lines(self) -> list[Line]:
            return [
                Line("kernels", "decide", "8 of 8 equal"),
                Line("memory", "bandwidth", "9 GB/s", why="none"),
            ]

    def measured(words: list[str]) -> None:
        (Path(words[words.index("--run") + 1]) / "report.md").write_text("# Peers\n\n| vllm | ssd4 | 9.1 |\n")

    monkeypatch.setattr("ssd.selftest.run.SelfTest", Tried)
    monkeypatch.setattr(vllm_page, "run_peers", measured)
    for _ in range(2):
        assert main(["m", "--draft", "d", "--run", str(tmp_path)]) == 0
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# vLLM, its own speculation, and SSD inside it")
    assert "| vllm | ssd4 | 9.1 |" in page
    assert "| kernels | decide | ok | 8 of 8 equal |" in page
    assert "9 GB/s (none)" in page
    assert len(tests) == 1
    (tmp_path / "selftest.md").unlink()
    assert "Not run." in page_text(tmp_path)
