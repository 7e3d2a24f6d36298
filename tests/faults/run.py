"""Breaks a copy of the source, fault by fault, and sees whether the named test notices.

    python -m tests.faults [--only WORD]

Every module `*_faults.py` beside this file with a list FAULTS takes part. A test that does not pass
without the fault, or cannot run at all, counts as not having noticed.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.fault import Change, Fault

ROOT = Path(__file__).parents[2]
_PASSED, _FAILED = 0, 1
"""Exit codes of pytest; what is neither is a run that did not happen."""
_TIMEOUT = 600
_ALWAYS = ("-p", "no:cacheprovider", "-p", "tests.faults.plugin")
_NOT_COPIED = (".git", ".venv*", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis", "runs")


def all_faults(only: str = "") -> list[Fault]:
    """Those with this word in their name or path, or in the name of the module that has them."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("*_faults.py"))
    faults = {name: importlib.import_module(f"tests.faults.{name}").FAULTS for name in modules}
    return [
        each
        for name, found in faults.items()
        for each in found
        if any(only in word for word in (name, each.name, each.path))
    ]


def faulty(source: str, fault: Change) -> str:
    """The source with the fault in it; ValueError unless its place is found exactly once."""
    count = source.count(fault.old)
    if count != 1:
        raise ValueError(f"{fault.name}: its place occurs {count} times in {fault.path}")
    if fault.old == fault.new:
        raise ValueError(f"{fault.name}: it changes nothing")
    return source.replace(fault.old, fault.new)


class Workshop:
    """A copy of everything, that may be broken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)

    def pytest(
        self, arguments: Sequence[str], *, python: str = sys.executable, timeout: float = _TIMEOUT
    ) -> tuple[int, str]:
        """Its exit code, -1 where it took too long; and what it wrote."""
        command = [python, "-m", "pytest", *_ALWAYS, *arguments]
        # No bytecode: a fault and its repair may fall into one second, and be of one length.
        settings = {"PYTHONPATH": str(self._folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env={**os.environ, **settings},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, ""
        return done.returncode, done.stdout

    @contextmanager
    def broken(self, change: Change) -> Iterator[None]:
        path = self._folder / change.path
        sound = path.read_text()
        path.write_text(faulty(sound, change))
        try:
            yield
        finally:
            path.write_text(sound)

    def passes(self, tests: Sequence[str]) -> bool:
        return self.pytest(["-x", *tests])[0] == _PASSED

    def is_caught(self, fault: Fault) -> bool:
        with self.broken(fault):
            return self.pytest(["-x", fault.test])[0] == _FAILED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults with this word in their name, path or module")
    faults = all_faults(parser.parse_args().only)
    if not faults:
        print("no fault has this word in its name, path or module")
        return 1
    with tempfile.TemporaryDirectory(prefix="ssd-faults-") as folder:
        workshop = Workshop(Path(folder))
        if not workshop.passes(list(dict.fromkeys(fault.test for fault in faults))):
            print("the tests do not pass without any fault")
            return 1
        survivors = 0
        for fault in faults:
            started = time.perf_counter()
            caught = workshop.is_caught(fault)
            survivors += not caught
            verdict = f"caught by {fault.test}" if caught else f"SURVIVES {fault.test}"
            print(f"{fault.name:<55} {verdict}  ({time.perf_counter() - started:.0f} s)", flush=True)
    print(f"{len(faults) - survivors} of {len(faults)} faults caught")
    return int(survivors > 0)
