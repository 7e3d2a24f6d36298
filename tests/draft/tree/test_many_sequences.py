"""With many sequences outcomes are applied to copies of some rows; the results must be the same."""

from dataclasses import fields

import numpy as np
import pytest

from ssd.config import GrowthPolicyName
from ssd.draft.tree import forest
from ssd.draft.tree.select import growth_policy
from ssd.draft.tree.tables import Moves, Tables
from tests.draft.crowd import CountingModel, Crowd


class MovingModel(CountingModel):
    """Notes the KV slots that are copied."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[set[tuple[int, int]]] = []

    def move(self, moves: Moves) -> None:
        pairs = set(zip(moves.sources.ravel().tolist(), moves.targets.ravel().tolist(), strict=True))
        self.moved.append({(source, target) for source, target in pairs if source != target})


def result_of(ticks: int, policy: GrowthPolicyName) -> tuple[Tables, list[set[tuple[int, int]]]]:
    """The tables and moves of some ticks, with three targets whose rounds end at different times."""
    model = MovingModel()
    crowd = Crowd(sequences=24, width=16, model=model)
    grown = crowd.scheduler._steps.forest
    grown._policy = growth_policy(policy, grown.xp, grown.shape)
    for number in range(3):
        crowd.add(f"tenant {number}", 8)
    crowd.run(ticks)
    return grown.tables, model.moved


@pytest.mark.parametrize("policy", ["value", "geometric"])
def test_applying_outcomes_to_copies_gives_the_same_tables(
    monkeypatch: pytest.MonkeyPatch, policy: GrowthPolicyName
) -> None:
    monkeypatch.setattr(forest, "_COPY_ABOVE", 0)
    copied, moved_of_copies = result_of(60, policy)
    monkeypatch.setattr(forest, "_COPY_ABOVE", 1 << 20)
    whole, moved = result_of(60, policy)
    assert int(whole.length.sum()) > 24 * 50, "hardly any outcome was applied"
    for each in fields(Tables):
        assert np.array_equal(getattr(copied, each.name), getattr(whole, each.name)), each.name
    assert moved_of_copies == moved
    assert any(moved)
