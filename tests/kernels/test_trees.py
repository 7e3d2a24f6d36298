"""A draft's steps by our kernels are torch's, tree by tree; and which of the two a forest takes."""

from dataclasses import replace

import pytest
import torch

from ssd.draft.tree import gpu_rows
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.device_edits import DeviceEdits
from ssd.draft.tree.device_runs import RunFinder
from ssd.draft.tree.gpu import STEPS, FusedForest, kernels_on
from ssd.draft.tree.gpu_rows import FusedEdits, FusedRunFinder, edits_on, run_finder_on
from ssd.draft.tree.tables import Shape
from tests.kernels.tree_checks import CHECKED, ROUNDS, ForestScene, check_steps

CPU = torch.device("cpu")
SHAPE = Shape(3, 4, rows=6, slots=20, children=3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rounds", ROUNDS, ids=str)
def test_each_step_does_what_torch_does(rounds: ForestScene) -> None:
    findings = list(check_steps(CPU, (replace(rounds, count=rounds.count // 2),)))
    assert [each.kernel for each in findings] == list(CHECKED)
    assert [each for each in findings if not each.is_sound] == []


def test_a_card_finds_runs_and_edits_by_kernels_where_they_can_be_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_rows, "can_launch", lambda device: True)
    meta = torch.device("meta")

    def kinds(device: torch.device) -> tuple[type, type]:
        return type(run_finder_on(SHAPE, device)), type(edits_on(SHAPE, 9, None, device))

    assert kinds(meta) == (FusedRunFinder, FusedEdits)
    assert kinds(CPU) == (RunFinder, DeviceEdits)
    monkeypatch.setattr(gpu_rows, "can_launch", lambda device: False)
    assert kinds(meta) == (RunFinder, DeviceEdits)


def test_room_is_for_all_the_steps_of_a_round() -> None:
    forest = with_children_of_roots(1)
    tables = forest.tables
    for steps, count in ((1, 3), (9, 3), (10, 2), (30, 1)):
        tables.steps_left[1] = steps
        forest.select()
        assert int((forest.rows.sequence == 1).sum()) == count
    tables.is_used[1, : SHAPE.slots] = True
    forest.select()
    assert not forest.rows.sequence.any()


def test_rows_go_round_among_tenants_and_new_texts_are_beside_them() -> None:
    forest = with_children_of_roots(1, 2)
    tables, usage, sequence = forest.tables, forest.usage, forest.rows.sequence
    for row in (1, 2):
        usage.tenant[row] = row
    for weight, counts in ((1.0, [2, 2]), (3.0, [3, 1])):
        usage.weight[1] = weight
        forest.select()
        assert [int((sequence == row).sum()) for row in (1, 2)] == counts
    tables.is_live[3], tables.is_new[3], tables.length[3], tables.num_computed[3] = True, True, 8, 5
    forest.select()
    assert [int((sequence == row).sum()) for row in (1, 2, 3)] == [3, 1, 2]


def with_children_of_roots(*rows: int) -> FusedForest:
    """Trees of three nodes, which may all be processed."""
    forest = FusedForest(TorchArrays(), SHAPE, kernels=frozenset(STEPS))
    tables, root = forest.tables, SHAPE.root
    for row in rows:
        tables.is_live[row], tables.length[row], tables.num_computed[row] = True, 5, 5
        tables.last_position[row], tables.is_used[row, root], tables.is_open[row, root] = 50, True, True
    return forest


def test_what_fails_is_torchs() -> None:
    assert kernels_on(CPU) == frozenset()
    forest = FusedForest(TorchArrays(), SHAPE)
    forest.apply()
    assert not hasattr(forest, "_fused")
