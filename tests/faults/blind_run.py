"""How many of the blind faults do the tests notice?

    python -m tests.faults.blind_run --record FILE.jsonl [--only WORD] [--vllm PYTHON]

Each fault meets the tests of its package, and, if it survives, all that .ci/run runs, up to the first test that
fails. Every verdict is a line of the record, and what stands there is not run again: it can be ended at any time.
Tests that fail without any fault are told, and do not count.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.blind import BLIND
from tests.faults.fault import BlindFault
from tests.faults.run import ROOT, Workshop

# As in .ci/run, but for the tests that look for the places of faults: those notice any.
_SELECTED = (
    *("-m", "not slow", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
    "--ignore=tests/faults",
)
_SELECTED_WITH_VLLM = ("-m", "vllm and not slow")
_LONGEST = 3 * 3600.0
"""Seconds of one run of tests. Each test has a timeout of its own: this is for a run that none of them ends."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
"""In pytest's summary; ERROR also names a file that could not be read."""


@dataclass(frozen=True, slots=True)
class Suite:
    folder: str
    python: str = sys.executable
    options: Sequence[str] = _SELECTED

    @property
    def name(self) -> str:
        return self.folder if self.options is _SELECTED else f"{self.folder}, with vLLM"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line of the record: of a fault, or, where there is none, of tests that fail anyway."""

    fault: str
    suite: str
    """Where it ended: the suite that noticed, or the last one."""
    failed: Sequence[str]
    """Of a fault the test that noticed; none: it survives."""
    commit: str
    seconds: float


class Record:
    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.verdicts = [Verdict(**json.loads(line)) for line in lines]

    def find(self, fault: str, suite: str | None = None) -> Verdict | None:
        fits = (each for each in self.verdicts if each.fault == fault and suite in (None, each.suite))
        return next(fits, None)

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")


class BlindRun:
    def __init__(self, workshop: Workshop, record: Record, *, vllm: str | None) -> None:
        self._workshop, self._record = workshop, record
        self._with_vllm = [] if vllm is None else [Suite("tests/vllm", vllm, _SELECTED_WITH_VLLM)]
        self._commit = _commit()

    def judge(self, fault: BlindFault) -> Verdict:
        known = self._record.find(fault.name)
        return known if known is not None else self._judged(fault)

    def _judged(self, fault: BlindFault) -> Verdict:
        started = time.perf_counter()
        suite, failed = Suite("tests"), list[str]()
        for suite in self._suites(fault):
            failed = self._noticed(fault, suite)
            if failed:
                break
        return self._note(fault.name, suite, failed, started)

    def _suites(self, fault: BlindFault) -> Iterator[Suite]:
        """Those of its package, then all."""
        package = Path(fault.path).parts[2]
        yield Suite(f"tests/{'vllm' if package == 'integrations' else package}")
        yield from self._with_vllm
        yield Suite("tests")

    def _noticed(self, fault: BlindFault, suite: Suite) -> list[str]:
        """The test that fails with the fault, and not without it."""
        excused = set(self._failing_anyway(suite))
        while True:
            with self._workshop.broken(fault):
                failed = self._failing(suite, "-x", *(f"--deselect={each}" for each in sorted(excused)))[:1]
            if not failed or not self._failing(suite, tests=failed):
                return failed
            # It fails now and then, or always where it could not be excused.
            if excused.issuperset(failed):
                return []
            excused.update(failed)

    def _failing_anyway(self, suite: Suite) -> Sequence[str]:
        """Found out once for each suite, before its first fault."""
        known = self._record.find("", suite.name)
        if known is None:
            started = time.perf_counter()
            known = self._note("", suite, self._failing(suite), started)
            print(f"{suite.name:<12} without a fault: {', '.join(known.failed) or 'all pass'}", flush=True)
        return known.failed

    def _failing(self, suite: Suite, *options: str, tests: Sequence[str] = ()) -> list[str]:
        arguments = [*suite.options, *options, *(tests or [suite.folder])]
        code, said = self._workshop.pytest(arguments, python=suite.python, timeout=_LONGEST)
        found = list(dict.fromkeys(_FAILED.findall(said)))
        if code == -1:
            print(f"{suite.name:<12} did not end within {_LONGEST / 3600:.0f} hours", flush=True)
        elif code not in (0, 5) and not found:
            raise RuntimeError(f"pytest ended with code {code} and named no test:\n{said[-2000:]}")
        return found

    def _note(self, fault: str, suite: Suite, failed: Sequence[str], started: float) -> Verdict:
        seconds = round(time.perf_counter() - started, 1)
        verdict = Verdict(fault, suite.name, failed, self._commit, seconds)
        self._record.add(verdict)
        return verdict


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
    asked = parser.parse_args()
    faults = [each for each in BLIND if asked.only in each.name or asked.only in each.path]
    # Ends the tests under way, and takes the copy away.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    num_caught = 0
    with tempfile.TemporaryDirectory(prefix="ssd-faults-") as folder:
        run = BlindRun(Workshop(Path(folder)), Record(asked.record), vllm=asked.vllm)
        for fault in faults:
            verdict = run.judge(fault)
            num_caught += bool(verdict.failed)
            found = f"caught by {verdict.failed[0]}" if verdict.failed else "SURVIVES"
            print(f"{fault.name:<80} {found}  ({verdict.seconds:.0f} s)", flush=True)
    print(f"{num_caught} of {len(faults)} caught")
    return int(num_caught < len(faults))


if __name__ == "__main__":
    sys.exit(main())
