"""No kernel has a race, as far as addresses tell; two races that are put into kernels are found."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from ssd.kernels.kv import move_kv
from ssd.kernels.tree_outcomes import fade
from tests.kernels.launched import launched_kernels
from tests.kernels.model_checks import AttentionCase, CaseSequence, LogitsCase, RowsCase, check_kernels
from tests.kernels.races import RaceLog, logged_races
from tests.kernels.tree_checks import ROUNDS, check_steps
from tests.kernels.walk_scene import Scene

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
CPU = torch.device("cpu")


CASES = (
    AttentionCase(4, 2, 32, torch.float32, (CaseSequence(5, 3), CaseSequence(70, 4, 20))),
    AttentionCase(2, 1, 64, torch.float16, (CaseSequence(1030, 2),), deterministic=True),
    LogitsCase(2, 2049, truncates=True),
    LogitsCase(2, 700, head_tokens=True),
    RowsCase(2, 20, 1100, torch.float32),
)


def _models() -> None:
    assert all(each.is_sound for each in check_kernels(CPU, CASES))


def _trees() -> None:
    assert all(each.is_sound for each in check_steps(CPU, [replace(each, count=2) for each in ROUNDS]))


def _walk() -> None:
    scene = Scene(0, 12, 3)
    paths = [scene.expected(request) for request in range(12)]
    assert scene.walked() == ([path + [0] * (3 - len(path)) for path in paths], [*map(len, paths)])


def _fade(wide: int = 1024) -> None:
    """The scenes of trees never see a cell so often that it is halved."""
    counts = torch.full((2, 1500), 8.0, dtype=torch.float64)
    fade[(-(-1500 // wide),)](counts, num_cells=1500, memory=4.0, wide=wide, num_warps=4)
    assert (counts == 4.0).all()


@pytest.fixture(scope="module")
def log() -> RaceLog:
    with logged_races() as log:
        _models()
        _trees()
        _walk()
        _fade()
    return log


def test_no_two_programs_touch_what_one_writes_and_barriers_stand_where_they_must(log: RaceLog) -> None:
    assert not log.conflicts


def test_every_kernel_that_is_launched_is_checked(log: RaceLog) -> None:
    assert set(log.launches) == launched_kernels()


def _steps() -> None:
    list(check_steps(CPU, (replace(ROUNDS[0], count=2),)))


def _children() -> None:
    list(check_kernels(CPU, (LogitsCase(2, 2049),)))


@pytest.mark.parametrize(
    ("place", "old", "new", "scene", "what"),
    [
        (
            "tree_outcomes.apply_outcome",
            "    tl.debug_barrier()\n    tl.store(trees.root_id",
            "    tl.store(trees.root_id",
            _steps,
            "written without a barrier after a read",
        ),
        (
            "vocabulary.children_of_blocks",
            "place = row * num_blocks + tl.program_id(1)",
            "place = row * num_blocks + tl.program_id(1) // 2",
            _children,
            "two programs write",
        ),
    ],
    ids=["a barrier is left out", "blocks of a vocabulary share a place"],
)
def test_a_race_that_is_put_into_a_kernel_is_found(
    place: str,
    old: str,
    new: str,
    scene: Callable[[], None],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`place` is module.kernel."""
    name, kernel = place.split(".")
    module = import_module(f"ssd.kernels.{name}")
    source = Path(str(module.__file__)).read_text()
    assert source.count(old) == 1
    # Triton reads a kernel's source from its file.
    (tmp_path / f"{name}.py").write_text(source.replace(old, new))
    spec = spec_from_file_location(name, tmp_path / f"{name}.py")
    assert spec
    assert spec.loader
    changed = module_from_spec(spec)
    spec.loader.exec_module(changed)
    monkeypatch.setattr(module, kernel, getattr(changed, kernel))
    with logged_races() as log:
        scene()
    assert (kernel, what) in {(each.kernel, each.what) for each in log.conflicts}


def test_a_lane_that_several_threads_hold_is_no_thread_of_its_own() -> None:
    with logged_races() as log:
        _fade(wide=64)
    assert {(each.kernel, each.what) for each in log.conflicts} == {
        ("fade", "written without a barrier after a read")
    }


def test_moves_that_overlap_are_found() -> None:
    pool = torch.randn(1, 2, 8, 16)
    with logged_races() as log:
        move_kv(pool, pool.clone(), torch.tensor([1, 2]), torch.tensor([2, 3]))
    assert {each.what for each in log.conflicts} == {"one program writes what another reads"}
