"""Load by other programs: counted where it is theirs, not where it is ours, and unknown without /proc."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ssd.processes import other_load
from ssd.processes.other_load import OtherLoad

OURS, CHILD, GRANDCHILD, STRANGER = os.getpid(), 900_001, 900_002, 900_003


class Machine:
    """A /proc of three cores, of which this process may use the first two."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def core_times(self, *cores: Sequence[int]) -> None:
        lines = [f"cpu{number} {' '.join(map(str, times))} 0 0" for number, times in enumerate(cores)]
        (self._folder / "stat").write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *lines, "intr 5"]))

    def process(self, number: int, parent: int, ticks: int, of_ended_children: int = 0) -> None:
        words = ["S", parent, *[0] * 9, ticks, 0, of_ended_children, 0, 20]
        (self._folder / str(number)).mkdir(exist_ok=True)
        (self._folder / str(number) / "stat").write_text(f"{number} (a (b) c) {' '.join(map(str, words))}")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setattr(other_load, "_PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1}, raising=False)
    return Machine(tmp_path)


def test_only_time_of_others_on_our_cores_counts(machine: Machine) -> None:
    machine.core_times([0] * 8, [0] * 8, [0] * 8)
    machine.process(OURS, 1, 10)
    machine.process(CHILD, OURS, 10)
    load = OtherLoad()
    # Our two cores: 200 ticks, 60 of them idle, 20 waiting for a disk, 120 busy (10 stolen); 80 are ours.
    machine.core_times(
        [50, 10, 0, 30, 10, 0, 0, 0], [40, 0, 10, 30, 10, 0, 0, 10], [100, 0, 0, 0, 0, 0, 0, 0]
    )
    machine.process(OURS, 1, 40, of_ended_children=10)
    machine.process(CHILD, OURS, 40)
    machine.process(GRANDCHILD, CHILD, 10)
    machine.process(STRANGER, 1, 30)
    assert load.share() == pytest.approx(0.2)


def test_a_machine_with_only_our_programs_is_not_busy(machine: Machine) -> None:
    machine.core_times([0] * 8, [0] * 8)
    machine.process(OURS, 1, 0)
    load = OtherLoad()
    machine.core_times([100, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 100, 0, 0, 0, 0])
    machine.process(OURS, 1, 100)
    assert load.share() == 0.0


def test_without_proc_it_cannot_be_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(other_load, "_PROC", tmp_path / "none")
    load = OtherLoad()
    assert load.share() is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="Linux only")
def test_the_real_files_can_be_read() -> None:
    load = OtherLoad()
    sum(range(2_000_000))
    share = load.share()
    assert share is None or 0 <= share <= 1
