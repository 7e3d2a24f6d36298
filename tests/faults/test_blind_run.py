"""Who counts as having noticed a blind fault, with pytest played by a table of what fails."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.blind import BLIND
from tests.faults.blind_run import BlindRun, Record, Verdict
from tests.faults.fault import Change
from tests.faults.run import Workshop

_FAULT = next(each for each in BLIND if "/integrations/" in each.path)
_MINE, _OTHERS, _SICK = (
    "tests/vllm/test_a.py::test_x[1-2]",
    "tests/e2e/test_b.py",
    "tests/vllm/test_a.py::test_y",
)
_LOGGED = "ERROR    ssd.worker.engine_process:line.py:231 the engine is dead"
"""What pytest shows of a test that failed may begin as its summary does."""


class _Played(Workshop):
    def __init__(self, *, sound: Sequence[str] = (), faulty: Sequence[str] = ()) -> None:
        """What fails without the fault and with it."""
        self._failing = (sound, faulty)
        self._is_broken = False
        self.asked: list[str] = []

    @contextmanager
    def broken(self, change: Change) -> Iterator[None]:
        self._is_broken = True
        yield
        self._is_broken = False

    def pytest(self, arguments: Sequence[str], *, python: str = "", timeout: float = 0.0) -> tuple[int, str]:
        folder = arguments[-1]
        assert "--ignore=tests/faults" in arguments, "tests that look for a fault's place notice any"
        self.asked.append(f"{folder}, {'broken' if self._is_broken else 'sound'}")
        left_out = [each.partition("=")[2] for each in arguments if each.startswith("--deselect=")]
        fails = [
            each
            for each in self._failing[self._is_broken]
            if each.startswith(folder) and each not in left_out
        ]
        found = fails[:1] if "-x" in arguments else fails
        lines = [f"FAILED {each} - assert 1 - 2 == 0" if "::" in each else f"ERROR {each}" for each in found]
        return (2, "\n".join([_LOGGED, "=== short test summary ===", *lines])) if lines else (0, "9 passed")


def _verdict(workshop: Workshop, record: Path, first: Sequence[str] = ()) -> Verdict:
    run = BlindRun(workshop, Record(record), vllm=None, first=first)
    return run.judge(_FAULT, run.everything(_FAULT))


def test_the_tests_of_the_package_come_first(tmp_path: Path) -> None:
    verdict = _verdict(_Played(faulty=[_OTHERS, _MINE]), tmp_path / "record")
    assert (verdict.suite, verdict.failed) == ("tests/vllm", [_MINE])


def test_who_survives_them_meets_all(tmp_path: Path) -> None:
    verdict = _verdict(_Played(faulty=[_OTHERS]), tmp_path / "record")
    assert (verdict.suite, verdict.failed) == ("tests", [_OTHERS])
    assert not _verdict(_Played(), tmp_path / "another").failed


def test_a_test_that_fails_anyway_notices_nothing(tmp_path: Path) -> None:
    assert not _verdict(_Played(sound=[_SICK], faulty=[_SICK]), tmp_path / "record").failed
    assert _verdict(_Played(sound=[_SICK], faulty=[_SICK, _MINE]), tmp_path / "another").failed == [_MINE]


def test_a_test_that_fails_now_and_then_notices_nothing(tmp_path: Path) -> None:
    class Moody(_Played):
        def pytest(
            self, arguments: Sequence[str], *, python: str = "", timeout: float = 0.0
        ) -> tuple[int, str]:
            is_alone = arguments[-1] == _SICK
            return (1, f"FAILED {_SICK} - oh") if is_alone else super().pytest(arguments)

    assert _verdict(Moody(faulty=[_SICK, _MINE]), tmp_path / "record").failed == [_MINE]


def test_what_stands_in_the_record_is_not_run_again(tmp_path: Path) -> None:
    first = _verdict(_Played(faulty=[_MINE]), tmp_path / "record")
    again = _Played()
    assert _verdict(again, tmp_path / "record") == first
    assert not again.asked


def test_the_tests_that_were_named_come_before_all_others(tmp_path: Path) -> None:
    workshop = _Played(faulty=[_OTHERS, _MINE])
    verdict = _verdict(workshop, tmp_path / "record", first=[_SICK, _OTHERS])
    assert (verdict.suite, verdict.failed) == (_OTHERS, [_OTHERS])
    assert workshop.asked == [f"{_SICK}, broken", f"{_OTHERS}, broken", f"{_OTHERS}, sound"]
