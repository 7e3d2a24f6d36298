"""How many of the blind faults do the tests notice?

    python -m tests.faults.blind_run --record FILE.jsonl [--only WORD] [--sample N] [--vllm PYTHON]
        [--first TEST… [--only-first]] [--earlier RECORD]

Each fault meets the tests named after its module, those of its package, and, if it survives, all that .ci/run
runs, up to the first test that fails; one that fails without the fault too does not count. First all faults meet
the tests of their packages, then the survivors all others. What each suite said of a fault is a line of the record,
and what stands there is not run again, nor a fault that some suite noticed: it can be ended at any time.
"""

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.blind import BLIND
from tests.faults.fault import BlindFault
from tests.faults.run import ROOT, Workshop

# As in .ci/run, but for the tests that look for the places of faults: those notice any.
_SELECTED = ("-m", "not slow", "--ignore=tests/faults")
_TWO_AT_ONCE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
_SELECTED_WITH_VLLM = ("-m", "vllm and not slow")
_LONGEST = 3 * 3600.0
"""Seconds of one run of tests. Each test has a timeout of its own: this is for a run that none of them ends."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
"""In pytest's summary; ERROR also names a file that could not be read, and begins lines of logs."""


@dataclass(frozen=True, slots=True)
class Suite:
    tests: str
    """A folder, a file or a test."""
    vllm: str | None = None
    """A Python that has it, for the tests that need it."""

    @property
    def name(self) -> str:
        return f"{self.tests}, with vLLM" if self.vllm else self.tests

    @property
    def options(self) -> Sequence[str]:
        if self.vllm:
            return _SELECTED_WITH_VLLM
        return _SELECTED if ".py" in self.tests else (*_SELECTED, *_TWO_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line of the record: what a suite said of a fault."""

    fault: str
    suite: str
    failed: Sequence[str]
    """The test that noticed; none: it survives."""
    commit: str
    seconds: float


class Record:
    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.verdicts = [Verdict(**json.loads(line)) for line in lines]

    def find(self, fault: str, suite: str) -> Verdict | None:
        fits = (each for each in self.verdicts if (each.fault, each.suite) == (fault, suite))
        return next(fits, None)

    def caught(self, fault: str) -> Verdict | None:
        return next((each for each in self.verdicts if each.fault == fault and each.failed), None)

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")


class BlindRun:
    def __init__(
        self,
        workshop: Workshop,
        record: Record,
        *,
        vllm: str | None,
        first: Sequence[str] = (),
        earlier: Record | None = None,
    ) -> None:
        self._workshop, self._record = workshop, record
        self._vllm, self._first, self._earlier = vllm, first, earlier
        self._commit = _commit()

    def judge(self, fault: BlindFault, suites: Iterable[Suite]) -> Verdict:
        """What the first suite that notices says, or else the last one."""
        if caught := self._record.caught(fault.name):
            return caught
        for suite in suites:
            verdict = self._record.find(fault.name, suite.name) or self._judged(fault, suite)
            if verdict.failed:
                break
        return verdict

    def first(self, fault: BlindFault) -> Iterator[Suite]:
        for tests in self._first:
            yield Suite(tests, self._vllm)
        caught = None if self._earlier is None else self._earlier.caught(fault.name)
        for test in () if caught is None else _tests_of_that_name(caught.failed[0]):
            yield Suite(test)

    def of_package(self, fault: BlindFault) -> Iterator[Suite]:
        yield from self.first(fault)
        inner = [each for each in Path(fault.path).parts[:-1] if each not in ("src", "ssd", "integrations")]
        deepest, package = "/".join(("tests", *inner)), f"tests/{inner[0]}"
        for tests in dict.fromkeys((f"{deepest}/test_{Path(fault.path).stem}.py", deepest, package)):
            if (ROOT / tests).exists():
                yield Suite(tests)

    def everything(self, fault: BlindFault) -> Iterator[Suite]:
        yield from self.of_package(fault)
        if self._vllm:
            yield Suite("tests/vllm", self._vllm)
        yield Suite("tests")

    def _judged(self, fault: BlindFault, suite: Suite) -> Verdict:
        started = time.perf_counter()
        failed = self._noticed(fault, suite)
        seconds = round(time.perf_counter() - started, 1)
        verdict = Verdict(fault.name, suite.name, failed, self._commit, seconds)
        self._record.add(verdict)
        return verdict

    def _noticed(self, fault: BlindFault, suite: Suite) -> list[str]:
        """The test that fails with the fault, and not without it."""
        excused = set[str]()
        while True:
            with self._workshop.broken(fault):
                failed = self._failing(suite, "-x", *(f"--deselect={each}" for each in sorted(excused)))[:1]
            if not failed or not self._failing(suite, tests=failed):
                return failed
            # It fails now and then, or always where it could not be excused.
            if excused.issuperset(failed):
                return []
            excused.update(failed)

    def _failing(self, suite: Suite, *options: str, tests: Sequence[str] = ()) -> list[str]:
        arguments = [*suite.options, *options, *(tests or [suite.tests])]
        code, said = self._workshop.pytest(arguments, python=suite.vllm or sys.executable, timeout=_LONGEST)
        found = list(dict.fromkeys(_FAILED.findall(said)))
        if code == -1:
            print(f"{suite.name:<12} did not end within {_LONGEST / 3600:.0f} hours", flush=True)
        elif code not in (0, 5) and not found:
            raise RuntimeError(f"pytest ended with code {code} and named no test:\n{said[-2000:]}")
        return found


def _tests_of_that_name(test: str) -> Iterator[str]:
    """The test as it is called now: its file may have another name."""
    name = test.partition("[")[0].rpartition("::")[2]
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if f"def {name}(" in file.read_text():
            yield f"{file.relative_to(ROOT)}::{name}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, required=True, help="where verdicts are kept, a line each")
    parser.add_argument("--only", default="", help="faults with this word in their name or path")
    parser.add_argument("--vllm", metavar="PYTHON", help="one that has vLLM: its tests run too")
    parser.add_argument(
        "--first",
        metavar="TEST",
        nargs="+",
        default=[],
        help="files or tests that each fault meets before those of its module; with --vllm, by that Python",
    )
    parser.add_argument(
        "--earlier", type=Path, metavar="RECORD", help="each fault first meets the test that noticed it there"
    )
    parser.add_argument("--only-first", action="store_true", help="and no others")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn by lot")
    asked = parser.parse_args()
    faults = [each for each in BLIND if asked.only in each.name or asked.only in each.path]
    if asked.sample is not None:
        faults = random.Random(asked.sample).sample(faults, min(asked.sample, len(faults)))
    # Ends the tests under way, and takes the copy away.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="ssd-faults-") as folder:
        earlier = None if asked.earlier is None else Record(asked.earlier)
        options = {"vllm": asked.vllm, "first": asked.first, "earlier": earlier}
        run = BlindRun(Workshop(Path(folder)), Record(asked.record), **options)
        survivors = faults
        for suites in [run.first] if asked.only_first else [run.of_package, run.everything]:
            survivors = [fault for fault in survivors if not _told(run.judge(fault, suites(fault)))]
            print(f"{len(faults) - len(survivors)} of {len(faults)} caught", flush=True)
    return int(bool(survivors))


def _told(verdict: Verdict) -> bool:
    """Whether it is caught, as the terminal says."""
    found = f"caught by {verdict.failed[0]}" if verdict.failed else f"SURVIVES {verdict.suite}"
    print(f"{verdict.fault:<80} {found}  ({verdict.seconds:.0f} s)", flush=True)
    return bool(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
