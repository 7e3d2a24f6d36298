"""On real engines: the grid, points in groups beside the tuned settings; the winner on other prompts."""

from pathlib import Path

import pytest

from benchmarks.grid import Point, distance, grid_cases, read_tuned, run_grid, split_cores
from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.bench.statistics import Estimate
from ssd.config import DraftConfig, EngineConfig
from ssd.tuning.confirm import CaseRates, on_held_out

TUNED = Case(mode="ssd", lookahead=8, draft_width=16, draft_precision="int8", growth="value")


def test_two_points_beside_the_tuned_settings(tiny_llama: Path, tiny_draft: str) -> None:
    config = EngineConfig(model=str(tiny_llama), device="cpu", dtype="float32")
    draft = DraftConfig(model=tiny_draft)
    cases = [Case(mode="ssd", draft_width=4, lookahead=4), Case(mode="ssd", draft_width=8, growth="uniform")]
    said: list[str] = []
    with CaseEngines(config, draft, [Case(mode="ar"), Case(mode="ssd")]) as engines:
        points = run_grid(
            engines,
            Case(mode="ar"),
            ["Once upon a time"] * 2,
            max_tokens=16,
            seed=1,
            say=said.append,
            cases=cases,
        )
    assert said == [f"{cases[0].name}, {cases[1].name}"]
    assert {point.case for point in points} == set(cases)
    assert points[0].ratio.value >= points[1].ratio.value > 0
    assert 0 <= distance(points) < 1


def test_the_winner_runs_on_prompts_held_out(tiny_llama: Path, tiny_draft: str) -> None:
    config = EngineConfig(model=str(tiny_llama), device="cpu", dtype="float32")
    draft = DraftConfig(model=tiny_draft)
    plain, best = CaseRates(Case(mode="ar"), [1.0]), CaseRates(Case(mode="sd", lookahead=2), [2.0])
    with CaseEngines(config, draft, [plain.case, best.case]) as engines:
        prompts = ["Once upon a time", "The quick brown fox", "def add(a, b):"]
        found = on_held_out(engines, best, plain, prompts, max_tokens=16, seed=1)
        assert on_held_out(engines, plain, plain, prompts, max_tokens=16, seed=1) is None
    assert found is not None
    assert found.count == 3
    assert found.value > 0


def test_a_tuned_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text(
        "# why\nmodel: big\nmode: ssd\ncores: [0]\nlookahead: 4\n"
        "draft:\n  model: small\n  cores: [1]\n  growth: value\n"
    )
    case, config, draft = read_tuned(file)
    assert case == Case(mode="ssd", lookahead=4, growth="value")
    assert (config.model, config.cores) == ("big", (0,))
    assert draft == DraftConfig(model="small", cores=(1,))


def test_a_winner_on_all_cores_leaves_some_to_the_drafts_of_the_grid() -> None:
    case, config, draft = Case(mode="sd"), EngineConfig(model="big", cores=(0, 1)), DraftConfig(model="small")
    with pytest.raises(ValueError, match="say --cores and --draft-cores"):
        split_cores(case, config, draft, (), ())
    case, config, split = split_cores(case, config, draft, (0,), (1,))
    assert (case.all_cores, config.cores, split and split.cores) == (True, (0,), (1,))


def test_the_grid_has_24_points_and_knows_how_far_off_one_is() -> None:
    assert len(set(grid_cases(TUNED))) == 24
    assert {case.draft_precision for case in grid_cases(TUNED)} == {"int8"}
    points = [Point(TUNED, Estimate(value=ratio, count=6)) for ratio in (1.25, 0.5, 0.9)]
    assert distance(points[:2]) == pytest.approx(0.2)
    assert distance(points[2:]) == 0.0
