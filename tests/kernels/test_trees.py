"""A draft's steps by our kernels are torch's, tree by tree; and which of the two a forest takes."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssd.draft.server import kernel_checks
from ssd.draft.server.kernel_checks import CHECKED, ForestScene, check_steps, scene_of, sound_kernels
from ssd.draft.server.main import shape_for
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.device_edits import DeviceEdits
from ssd.draft.tree.device_runs import RunFinder
from ssd.draft.tree.gpu import STEPS, FusedForest, kernels_on
from ssd.draft.tree.gpu_rows import FusedEdits, FusedRunFinder, edits_on, run_finder_on
from ssd.draft.tree.tables import Shape
from ssd.kernels import trust
from ssd.selftest.kernels import ROUNDS

CPU = torch.device("cpu")
SHAPE = Shape(3, 4, rows=6, slots=20, children=3)


@pytest.fixture(autouse=True)
def nothing_failed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_failed", set())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rounds", ROUNDS, ids=str)
def test_each_step_does_what_torch_does(rounds: ForestScene) -> None:
    findings = list(check_steps(CPU, (replace(rounds, count=rounds.count // 2),)))
    assert [each.kernel for each in findings] == list(CHECKED)
    assert [each for each in findings if not each.is_sound] == []


def test_a_card_finds_runs_and_edits_by_kernels_where_they_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "can_launch", lambda device: True)
    meta = torch.device("meta")

    def kinds(device: torch.device) -> tuple[type, type]:
        return type(run_finder_on(SHAPE, device)), type(edits_on(SHAPE, 9, None, device))

    assert kinds(meta) == (FusedRunFinder, FusedEdits)
    assert kinds(CPU) == (RunFinder, DeviceEdits)
    trust.leave_to_torch("runs", meta)
    assert kinds(meta) == (RunFinder, FusedEdits)
    trust.leave_to_torch("edits", meta)
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


def test_a_service_tries_its_own_shapes_and_leaves_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = SimpleNamespace(type="cuda")
    pool = SimpleNamespace(shape=SimpleNamespace(num_trees=7, block_size=16, tree_start=lambda row: 64))
    config = SimpleNamespace(width=12, lookup=4, children=5)
    shape = shape_for(*(SimpleNamespace(pool=pool, max_model_len=320), config))  # type: ignore[arg-type]
    tried = scene_of(shape).shape
    assert (tried.width, tried.children, tried.lookup, tried.slots) == (12, 5, 4, shape.slots)
    monkeypatch.setattr(kernel_checks, "can_launch", lambda device: True)
    monkeypatch.setattr(trust, "can_launch", lambda device: True)
    bad = [SimpleNamespace(kernel="attach", is_sound=False, description="differs", case="a case")]
    monkeypatch.setattr(kernel_checks, "check_steps", lambda device, scenes: bad)
    assert sound_kernels(shape, gpu) == {"select", "apply"}
    assert sound_kernels(shape, CPU) == frozenset()
