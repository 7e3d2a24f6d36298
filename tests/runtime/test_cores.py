"""Cores: which belong together, who gets which, and that a process stays on its own."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssd.runtime import cores
from ssd.runtime.cores import (
    CoreSplit,
    move_to_cores,
    physical_cores,
    pin_to_cores,
    restore_cores_on_error,
    share_out,
    usable_cores,
)

Groups = Sequence[tuple[int, ...]]

FAR = [(core, core + 8) for core in range(8)]
"""8 physical cores with 2 siblings each, numbered as most servers do; below, as others do."""
NEAR = [(2 * core, 2 * core + 1) for core in range(8)]
PLAIN = [(core,) for core in range(2)]
ONE = [(0, 1)]
needs_pinning = pytest.mark.skipif(not cores.can_pin(), reason="no way to pin here")


def simulate(monkeypatch: pytest.MonkeyPatch, groups: Groups) -> None:
    monkeypatch.setattr(cores, "physical_cores", lambda: list(groups))


@pytest.mark.parametrize(
    ("groups", "target", "draft"),
    [
        (FAR, (0, 1, 2, 3, 4, 5), (6, 7)),
        (NEAR, (0, 2, 4, 6, 8, 10), (12, 14)),
        (PLAIN, (0,), (1,)),
        (ONE, (0,), (1,)),
        ([(5,)], (5,), ()),
        # cpusets: whole cores, one whole and one half, odd ones.
        ([(2, 10), (3, 11)], (2,), (3,)),
        ([(0, 8), (1,)], (0,), (1,)),
        ([(3,), (4, 12), (9,), (10,), (13,)], (3, 4, 9, 10), (13,)),
    ],
)
def test_physical_cores_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, groups: Groups, target: tuple[int, ...], draft: tuple[int, ...]
) -> None:
    simulate(monkeypatch, groups)
    assert share_out() == CoreSplit(target, draft)


@pytest.mark.parametrize(
    ("groups", "given_side", "other"),
    [
        (FAR, (0, 1), (2, 3, 4, 5, 6, 7)),
        (NEAR, (0, 1), (2, 4, 6, 8, 10, 12, 14)),
        # Half of a physical core is as good as taken, as long as whole ones are free.
        (FAR, (0, 1, 2, 3, 4, 5, 14), (7,)),
        (FAR, tuple(range(8)), tuple(range(8, 16))),
        (ONE, (1,), (0,)),
        (PLAIN, (1,), (0,)),
        (PLAIN, (0, 1), ()),
    ],
)
def test_the_other_side_gets_the_rest(
    monkeypatch: pytest.MonkeyPatch, groups: Groups, given_side: tuple[int, ...], other: tuple[int, ...]
) -> None:
    simulate(monkeypatch, groups)
    assert share_out(target=given_side) == CoreSplit(given_side, other)
    assert share_out(draft=given_side) == CoreSplit(other, given_side)


def machines() -> st.SearchStrategy[Groups]:
    """Any cores of any physical ones."""
    places = st.lists(st.integers(0, 7), min_size=1, max_size=16)

    def grouped(of_core: list[int]) -> Groups:
        found = [tuple(core for core, place in enumerate(of_core) if place == each) for each in range(8)]
        return sorted(filter(None, found))

    return places.map(grouped)


@given(machines(), st.sets(st.integers(0, 15)), st.booleans())
def test_never_the_same_core_and_siblings_only_without_a_choice(
    groups: Groups, named: set[int], is_target: bool
) -> None:
    named = named & {core for group in groups for core in group}
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch, groups)
        asked = tuple(sorted(named))
        split = share_out(target=asked) if is_target else share_out(draft=asked)
        assert not set(split.target) & set(split.draft)
        is_untouched = any(named.isdisjoint(group) for group in groups)
        had_a_choice = is_untouched if named else len(groups) > 1
        assert split.shares_physical_cores == (not had_a_choice and bool(split.target and split.draft))
        all_taken = len(named) == sum(map(len, groups))
        has_one = sum(map(len, groups)) == 1
        assert bool(split.target and split.draft) != (has_one or all_taken)


def write_topology(folder: Path, lists: dict[int, str], name: str) -> str:
    for core, text in lists.items():
        place = folder / f"cpu{core}" / "topology"
        place.mkdir(parents=True)
        (place / name).write_text(f"{text}\n")
    return str(folder / "cpu{}" / "topology")


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
@pytest.mark.parametrize(
    ("usable", "lists", "expected"),
    [
        (range(4), {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, [(0, 2), (1, 3)]),
        (range(4), {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, [(0, 1), (2, 3)]),
        ((1, 2, 3), {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, [(1, 3), (2,)]),
        ((0, 1), {}, [(0,), (1,)]),
        ((0, 1), {0: "", 1: ""}, [(0,), (1,)]),
    ],
)
def test_siblings_are_those_the_system_tells(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    usable: Iterable[int],
    lists: dict[int, str],
    expected: Groups,
    name: str,
) -> None:
    monkeypatch.setattr(cores, "_TOPOLOGY", write_topology(tmp_path, lists, name))
    monkeypatch.setattr(cores, "_CORES_AT_START", list(usable))
    assert physical_cores() == expected


def test_every_usable_core_is_in_one_group() -> None:
    assert sorted(core for group in physical_cores() for core in group) == usable_cores()


def test_missing_core_is_refused() -> None:
    with pytest.raises(ValueError, match="are not usable"):
        pin_to_cores([100_000])


@needs_pinning
def test_pinning_holds_in_a_process_of_its_own() -> None:
    core = usable_cores()[-1]
    program = (
        "import os, torch; from ssd.runtime.cores import pin_to_cores\n"
        f"pin_to_cores([{core}])\n"
        f"assert os.sched_getaffinity(0) == {{{core}}} and torch.get_num_threads() == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def fail_on(core: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    with restore_cores_on_error():
        pin_to_cores([core])
        meanwhile()
        raise RuntimeError("on purpose")


class Sitting(threading.Thread):
    """Lives until it is asked where it is; pinned by itself, or where it was born."""

    def __init__(self, *own: int) -> None:
        super().__init__(daemon=True)
        self._own, self._sits, self._over = own, threading.Event(), threading.Event()
        self._cores: set[int] = set()
        self.start()
        assert self._sits.wait(20)

    def run(self) -> None:
        if self._own:
            os.sched_setaffinity(0, self._own)
        self._sits.set()
        self._over.wait(20)
        self._cores = os.sched_getaffinity(0)

    def cores(self) -> set[int]:
        self._over.set()
        self.join(20)
        return self._cores


@needs_pinning
def test_what_fails_takes_nobody_along() -> None:
    """Neither the thread itself, nor one born meanwhile, nor one that someone had pinned before."""
    if len(usable_cores()) < 2:
        pytest.skip("one core")
    torch.set_num_threads(2)
    older, born = Sitting(usable_cores()[-1]), list[Sitting]()
    with pytest.raises(RuntimeError, match="on purpose"):
        fail_on(usable_cores()[0], lambda: born.append(Sitting()))
    assert older.cores() == {usable_cores()[-1]}
    assert born[0].cores() == os.sched_getaffinity(0) == set(usable_cores())
    assert torch.get_num_threads() == 2


@needs_pinning
def test_what_succeeds_stays_pinned() -> None:
    with restore_cores_on_error():
        pin_to_cores(usable_cores()[:1])
    assert os.sched_getaffinity(0) == set(usable_cores()[:1])


def hide_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sched_setaffinity", "sched_getaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    cores._warn_that_pinning_is_unsupported.cache_clear()


def test_without_affinity_cores_are_numbers_of_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hide_affinity(monkeypatch)
    usable = usable_cores()
    with caplog.at_level(logging.WARNING):
        pin_to_cores(usable[:1])
        assert torch.get_num_threads() == 1
        move_to_cores(usable)
        assert torch.get_num_threads() == len(usable)
        with pytest.raises(RuntimeError, match="on purpose"):
            fail_on(usable[0])
        assert torch.get_num_threads() == len(usable)
        move_to_cores(())
        assert torch.get_num_threads() == cores._THREADS_AT_START
        with pytest.raises(ValueError, match="are not usable"):
            pin_to_cores([100_000])
    assert [record.message.count("cannot pin processes") for record in caplog.records] == [1], "said once"


@needs_pinning
def test_without_proc_the_process_itself_still_moves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "_THREADS", tmp_path / "missing")
    pin_to_cores(usable_cores()[:1])
    move_to_cores(())
    assert os.sched_getaffinity(0) == set(usable_cores())
