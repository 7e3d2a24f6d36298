"""On real engines: the grid, points in groups beside the tuned settings; the winner on other prompts."""

from pathlib import Path

import pytest

from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.config import EngineConfig
from ssd.tuning.confirm import Measured, on_held_out
from ssd.tuning.grid import distance, run_grid


@pytest.mark.parametrize(
    "tuned", [Case(mode="ssd", lookahead=4, draft_width=4), Case(mode="ar")], ids=lambda case: case.name
)
def test_two_points_beside_the_tuned_settings(tiny_llama: Path, tiny_draft: Path, tuned: Case) -> None:
    config = EngineConfig(model=str(tiny_llama), device="cpu", dtype="float32")
    cases = [Case(mode="ssd", draft_width=4, lookahead=4), Case(mode="ssd", draft_width=8, growth="uniform")]
    said: list[str] = []
    with CaseEngines(config, str(tiny_draft), [Case(mode="ar"), Case(mode="ssd")]) as engines:
        points = run_grid(
            engines, tuned, ["Once upon a time"] * 2, max_tokens=16, seed=1, say=said.append, cases=cases
        )
    assert said == [f"{cases[0].name}, {cases[1].name}"]
    assert {point.case for point in points} == set(cases)
    assert points[0].ratio.value >= points[1].ratio.value > 0
    assert 0 <= distance(points) < 1


def test_the_winner_runs_on_prompts_held_out(tiny_llama: Path, tiny_draft: Path) -> None:
    config = EngineConfig(model=str(tiny_llama), device="cpu", dtype="float32")
    plain, best = Measured(Case(mode="ar"), [1.0]), Measured(Case(mode="sd", lookahead=2), [2.0])
    with CaseEngines(config, str(tiny_draft), [plain.case, best.case]) as engines:
        prompts = ["Once upon a time", "The quick brown fox", "def add(a, b):"]
        found = on_held_out(engines, best, plain, prompts, max_tokens=16, seed=1)
        assert on_held_out(engines, plain, plain, prompts, max_tokens=16, seed=1) is None
    assert found is not None
    assert found.count == 3
    assert found.value > 0
