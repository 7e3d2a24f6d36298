"""No kernel has a race, as far as addresses tell; and races that are put into kernels are found."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from ssd.draft.server.kernel_checks import check_steps
from ssd.kernels.kv import move_kv
from ssd.kernels.tree_outcomes import fade
from ssd.runtime.kernel_checks import (
    AttentionCase,
    CaseSequence,
    KernelCase,
    LogitsCase,
    RowsCase,
    check_kernels,
)
from ssd.selftest.kernels import ROUNDS
from tests.kernels.launched import launched_kernels
from tests.kernels.races import RaceLog, logged_races
from tests.kernels.test_scenes import GRID
from tests.kernels.walk_scene import Scene

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def _scene(case: KernelCase) -> KernelCase:
    """Without padding rows, which all write to the scratch slot; addresses do not depend on bfloat16."""
    case = replace(case, padding=0) if isinstance(case, AttentionCase) else case
    return replace(case, dtype=torch.float16) if case.dtype == torch.bfloat16 else case


def _models() -> None:
    assert all(each.is_sound for each in check_kernels(CPU, map(_scene, GRID)))


def _trees() -> None:
    assert all(each.is_sound for each in check_steps(CPU, ROUNDS))


def _walk() -> None:
    scene = Scene(0, 24, 3)
    paths = [scene.expected(request) for request in range(24)]
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


@dataclass(frozen=True, slots=True)
class Mutant:
    """A race that is put into the source of a kernel."""

    name: str
    path: str
    old: str
    """Occurs once in the file."""
    new: str
    kernel: str
    scene: Callable[[], object]
    what: str
    """How the race is named."""


def _mutant(name: str, place: str, old: str, new: str, scene: Callable[[], object], what: str) -> Mutant:
    """`place` is module.kernel."""
    module, kernel = place.split(".")
    return Mutant(name, f"src/ssd/kernels/{module}.py", old, new, kernel, scene, what)


def _attend() -> None:
    list(check_kernels(CPU, (AttentionCase(2, 1, 64, torch.float32, (CaseSequence(700, 2),)),)))


def _texts() -> None:
    list(check_kernels(CPU, (AttentionCase(4, 2, 16, torch.float32, (CaseSequence(3, 2),)),)))


def _rows() -> None:
    list(check_kernels(CPU, (RowsCase(2, 20, 1500, torch.float32),)))


def _children() -> None:
    list(check_kernels(CPU, (LogitsCase(2, 2049),)))


def _steps() -> None:
    list(check_steps(CPU, (replace(ROUNDS[0], count=2),)))


def _requests() -> None:
    Scene(0, 8, 3).walked()


_BARRIER = "    tl.debug_barrier()\n"
_TWO, _READS = "two programs write", "one program writes what another reads"
_LATE, _BACK, _AGAIN = (
    "written without a barrier after a read",
    "read back without a barrier",
    "written twice without a barrier",
)
MUTANTS = [
    _mutant(
        "the first barrier is left out",
        "tree_outcomes.apply_outcome",
        f"{_BARRIER}    tl.store(trees.root_id",
        "    tl.store(trees.root_id",
        _steps,
        _LATE,
    ),
    _mutant(
        "the second barrier is left out",
        "tree_outcomes.apply_outcome",
        f"{_BARRIER}    moves, is_place",
        "    moves, is_place",
        _steps,
        _LATE,
    ),
    _mutant(
        "the third barrier is left out",
        "tree_outcomes.apply_outcome",
        f"{_BARRIER}    tl.store(trees.is_used",
        "    tl.store(trees.is_used",
        _steps,
        _LATE,
    ),
    _mutant(
        "counts are added without atomics",
        "tree_outcomes.apply_outcome",
        "    tl.atomic_add(trees.counts + cells, ones, mask=is_guess)\n",
        "    seen = tl.load(trees.counts + cells, mask=is_guess, other=0.0)\n"
        "    tl.store(trees.counts + cells, seen + ones, mask=is_guess)\n",
        _steps,
        _AGAIN,
    ),
    _mutant(
        "ids are read from where other rows count them on",
        "tree_families.attach",
        "next_id = tl.load(found.next_id + row)",
        "next_id = tl.load(trees.next_id + sequence)",
        _steps,
        _READS,
    ),
    _mutant(
        "a path is read before all threads have written it",
        "tree_runs.read_path",
        "            tl.debug_barrier()\n",
        "",
        _steps,
        _BACK,
    ),
    _mutant(
        "exceptions are written beside the block",
        "edits.edit_block",
        "        tl.debug_barrier()\n",
        "",
        _steps,
        _AGAIN,
    ),
    _mutant(
        "tokens are counted without atomics",
        "tree_news.write_news",
        "tl.atomic_add(seen, tl.zeros([places], tl.int32) + 2, mask=is_token)",
        "tl.store(seen, tl.load(seen, mask=is_token) + 2, mask=is_token)",
        _steps,
        _AGAIN,
    ),
    _mutant(
        "a row is written by its neighbour",
        "tree_rows.lay_row",
        "tl.store(rows.start + row, start)",
        "tl.store(rows.start + row // 2, start)",
        _steps,
        _TWO,
    ),
    _mutant(
        "blocks of a vocabulary share a place",
        "vocabulary.children_of_blocks",
        "place = row * num_blocks + tl.program_id(1)",
        "place = row * num_blocks + tl.program_id(1) // 2",
        _children,
        _TWO,
    ),
    _mutant(
        "blocks share a mass",
        "floors.weigh_block",
        "tl.num_programs(1) + tl.program_id(1)",
        "tl.num_programs(1) + tl.program_id(1) // 2",
        _children,
        _TWO,
    ),
    _mutant(
        "splits share a place",
        "attend.attend",
        "place_of_row += split.to(tl.int64) * num_rows * num_heads",
        "place_of_row += (split // 2).to(tl.int64) * num_rows * num_heads",
        _attend,
        _TWO,
    ),
    _mutant(
        "key heads share a place",
        "rope.rotate_and_write",
        "spot = kv_head * pool_head_stride",
        "spot = kv_head // 2 * pool_head_stride",
        _texts,
        _TWO,
    ),
    _mutant(
        "a norm reads back what it has written",
        "rows.add_and_norm",
        "wide = total.to(tl.float32)",
        "wide = tl.load(added + spots, mask=is_place, other=0.0).to(tl.float32)",
        _rows,
        _BACK,
    ),
    _mutant(
        "blocks of a row share a place",
        "rows.silu_and_mul",
        "tl.store(out + row * size + places,",
        "tl.store(out + row * size + places % block,",
        _rows,
        _TWO,
    ),
    _mutant(
        "drafted tokens reach into the next request",
        "walk.walk_trees",
        "drafts + request * num_steps + step",
        "drafts + request * (num_steps - 1) + step",
        _requests,
        _TWO,
    ),
    _mutant(
        "a count is kept in memory",
        "walk.walk_trees",
        "    tl.store(counts + request, count)\n",
        "    tl.store(counts + request, count + 1)\n"
        "    tl.store(counts + request, tl.load(counts + request) - 1)\n",
        _requests,
        _BACK,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_race_is_found(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / Path(mutant.path).name
    source = (ROOT / mutant.path).read_text()
    assert source.count(mutant.old) == 1, mutant.name
    path.write_text(source.replace(mutant.old, mutant.new))
    spec = spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    kernels = importlib.import_module(f"ssd.kernels.{path.stem}")
    monkeypatch.setattr(kernels, mutant.kernel, getattr(module, mutant.kernel))
    with logged_races() as log:
        mutant.scene()
    assert (mutant.kernel, mutant.what) in {(each.kernel, each.what) for each in log.conflicts}


def test_a_lane_that_several_threads_hold_is_no_thread_of_its_own() -> None:
    with logged_races() as log:
        _fade(wide=64)
    assert {(each.kernel, each.what) for each in log.conflicts} == {("fade", _LATE)}


def test_moves_that_overlap_are_found() -> None:
    pool = torch.randn(1, 2, 8, 16)
    with logged_races() as log:
        move_kv(pool, pool.clone(), torch.tensor([1, 2]), torch.tensor([2, 3]))
    assert {each.what for each in log.conflicts} == {_READS}
