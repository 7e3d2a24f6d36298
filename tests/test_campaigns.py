"""Small forms of campaigns that no other test runs, so that none stops working unnoticed.

Each ends by its own verdict, except where that compares times: these mean nothing after so few seconds.
"""

import ast
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from campaigns.draft import equality
from campaigns.e2e import bombs, dashboards, exactness, siege
from campaigns.kernels import grid
from tests.server.process import ServerProcess, serving
from tests.tiny import write_checkpoint

ROOT = Path(__file__).parent.parent
Run = Callable[..., int]


def words_of(folder: str) -> Iterator[str]:
    """Modules that the files of a folder import, and strings in them that are one word."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{each.name}" for each in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
                yield node.value


def test_every_campaign_is_run_by_a_test() -> None:
    """Itself, by a campaign that starts it, or by its name within campaigns/vllm."""
    known = {*words_of("tests"), *(each for each in words_of("campaigns") if each.startswith("campaigns."))}
    known |= {f"campaigns.vllm.{each}" for each in words_of("tests/vllm")}
    for path in sorted((ROOT / "campaigns").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert module in known or "__main__" not in path.read_text(), f"no test runs {module}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a campaign's `main` in this process with arguments; returns its exit code."""

    def run_main(main: Callable[[], int | None], *arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["campaign", *map(str, arguments)])
        try:
            return main() or 0
        except SystemExit as ended:
            return int(ended.code or 0)

    return run_main


@pytest.mark.parametrize(("kind", "examples"), [((), 3), (("--trees",), 1)], ids=["scenes", "trees"])
def test_drawn_scenes_of_kernels(run: Run, tmp_path: Path, kind: tuple[str, ...], examples: int) -> None:
    record = tmp_path / "record.jsonl"
    assert run(grid.main, "--examples", examples, "--record", record, *kind) == 0
    assert len(record.read_text().splitlines()) == examples


def test_trees_of_the_draft_beside_the_reference_scheduler(run: Run, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    assert run(equality.main, "--rounds", 2, "--record", record, "--only", "greedy") == 0
    assert all(json.loads(line)["equal"] for line in record.read_text().splitlines())


def test_exactness_of_all_modes(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, records = write_checkpoint("medium", tmp_path / "model"), tmp_path / "run/records.jsonl"
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps({"text": "Once upon a time"}) + "\n")
    plan = ("--target", model, "--draft", "cut=2", "--prompts", tmp_path, "--run", tmp_path / "run")
    size = ("--prompts-per-set", 1, "--max-tokens", 8, "--max-model-len", 512, "--batches", 1)
    assert run(exactness.main, *plan, *size) == 0
    assert "\n0 sequences differ" in capsys.readouterr().out
    # A record is not made again, and a sequence that differs is noticed.
    *others, last = records.read_text().splitlines()
    spoiled = json.loads(last)
    spoiled["tokens"][0][-1] += 1
    records.write_text("\n".join([*others, json.dumps(spoiled)]) + "\n")
    assert run(exactness.main, *plan, *size) == 1


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(tiny_llama, log, {"served_model_name": siege.MODEL}, deterministic=False) as started:
        yield started


def test_honest_clients_under_siege(server: ServerProcess) -> None:
    _said, wrong = siege.besiege(
        server, seconds=4, clients=2, attackers=4, long_prompt="word " * 80, held_seconds=0.5
    )
    assert [each for each in wrong if not each.startswith("p99")] == []


@pytest.mark.parametrize("kind", bombs.KINDS, ids=lambda kind: kind.name)
def test_honest_requests_beside_bombs(server: ServerProcess, kind: bombs.Kind) -> None:
    alone, beside = bombs.compare(server, kind, seconds=0.5, rounds=1)
    assert sum(beside.hostile.values()) > 0
    assert [each for each in bombs.faults(alone, beside) if "p99" not in each] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus")
def test_what_dashboards_would_show(run: Run, tiny_llama: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    size = ("--seconds", 10, "--users", 1, "--tokens", 8)
    assert run(dashboards.main, "--model", tiny_llama, "--record", record, *size) == 0
    panels = {(each["dashboard"], each["panel"]): each for each in map(json.loads, record.open())}
    assert len(panels) == 29
    [generated, _prompt] = panels["grafana.json", "Tokens a second"]["series"]
    assert max(value for _, value in generated["points"]) > 0
    names = {each["name"] for each in panels["grafana-pool.json", "Drafts that each target has"]["series"]}
    assert names == set(dashboards.TENANTS)
