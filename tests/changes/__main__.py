"""How many single changes of the code do the tests notice?

    python -m tests.changes --area scheduler sampling --count 12 --seed 1 --record changes.jsonl

Draws changes from the seed (draw.py), makes each in a copy of the checkout, and runs the tests that cover
its area, quick ones first, until one fails or the time is over. Before, the tests of each area must pass on
the code as it is. If that took less than half of the time, a change at which they do not end counts as
noticed. Prints the changes that were not noticed, which somebody has to look into, and the share with its
95 % interval. A run with the same record goes on where it was interrupted.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.changes.draw import Change, draw

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("src", "tests", "benchmarks", "examples", "pyproject.toml", "README.md")


@dataclass(frozen=True, slots=True)
class Area:
    """Files of one part of the code, and the tests that cover them: those that take longest come last."""

    files: Sequence[str]
    """Patterns below src/ssd."""
    tests: Sequence[str]


_EXACT = "tests/exact"
AREAS = {
    "scheduler": Area(
        ["engine/sched*.py", "engine/sequence.py", "engine/prefill_budget.py"], ["tests/engine", _EXACT]
    ),
    "blocks": Area(["kvcache/*.py"], ["tests/kvcache", "tests/engine", _EXACT]),
    "decoder": Area(["decoding/*.py", "engine/core.py"], ["tests/decoding", "tests/engine", _EXACT]),
    "verification": Area(["decoding/verification.py", "decoding/rows.py"], ["tests/decoding", _EXACT]),
    "sampling": Area(["sampling/*.py"], ["tests/sampling", _EXACT]),
    "client": Area(["draft/client/*.py"], ["tests/draft/client", "tests/pool", _EXACT]),
    "vllm": Area(
        ["integrations/vllm/[bdow]*.py", "integrations/vllm/r[eu][qn]*.py", "integrations/vllm/se*.py"],
        ["tests/vllm", "tests/exact/vllm"],
    ),
}


def changed(area: str, count: int, seed: int) -> list[Change]:
    files = {path for pattern in AREAS[area].files for path in (ROOT / "src/ssd").glob(pattern)}
    return draw([path for path in files if path.name != "__init__.py"], count, seed, ROOT)


@dataclass(frozen=True, slots=True)
class Verdict:
    noticed: bool | None
    """None: the tests did not end in time."""
    by: str
    seconds: float


def verdict(change: Change | None, tests: Sequence[str], seconds: float, python: str, marks: str) -> Verdict:
    """The tests' verdict on the code with this change; None: on the code as it is."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="change-") as folder:
        for name in _COPIED:
            source, target = ROOT / name, Path(folder, name)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, target)
        if change is not None:
            Path(folder, change.path).write_text(change.source)
        noticed, by = _pytest(Path(folder), tests, seconds, python, marks)
    return Verdict(noticed, by, round(time.monotonic() - started, 1))


def _pytest(
    folder: Path, tests: Sequence[str], seconds: float, python: str, marks: str
) -> tuple[bool | None, str]:
    command = [
        python,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-m",
        marks,
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": f"{folder}/src:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    child = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return None, "time is over"
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return child.returncode != 0, lines[0][:160] if lines else f"exit {child.returncode}"


def seconds_without_a_change(area: str, seconds: float, python: str, marks: str) -> float:
    """How long the tests of the area take; ends the program if they fail, or take more than `seconds`."""
    said = verdict(None, AREAS[area].tests, seconds, python, marks)
    if said.noticed is not False:
        raise SystemExit(f"the tests of {area} do not pass in {seconds:.0f} s without a change: {said.by}")
    print(f"{area}: the code as it is passes in {said.seconds} s", flush=True)
    return said.seconds


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return middle - half, middle + half


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--area", nargs="+", default=list(AREAS), choices=list(AREAS))
    flags.add_argument("--count", type=int, default=10, help="changes for each area")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--seconds", type=float, default=180, help="most for the tests of one change")
    flags.add_argument("--jobs", type=int, default=2)
    flags.add_argument("--python", default=sys.executable, help="of a venv with vLLM, for its area")
    flags.add_argument("--marks", default="not slow and not models and not vllm")
    flags.add_argument("--record", type=Path, required=True)
    options = flags.parse_args()
    done = (
        [json.loads(line) for line in options.record.read_text().splitlines()]
        if options.record.exists()
        else []
    )
    known = {(each["area"], each["change"]) for each in done}
    wanted = [
        (area, change)
        for area in options.area
        for change in changed(area, options.count, options.seed)
        if (area, str(change)) not in known
    ]

    usual = {
        area: seconds_without_a_change(area, options.seconds, options.python, options.marks)
        for area in {area for area, _change in wanted}
    }

    def judge(item: tuple[str, Change]) -> None:
        area, change = item
        said = verdict(change, AREAS[area].tests, options.seconds, options.python, options.marks)
        noticed = usual[area] < options.seconds / 2 if said.noticed is None else said.noticed
        line = {
            "area": area,
            "change": str(change),
            "noticed": noticed,
            "by": said.by,
            "seconds": said.seconds,
        }
        done.append(line)
        with options.record.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(line["noticed"], line["seconds"], line["change"], "|", line["by"], flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(judge, wanted))
    for area in options.area:
        lines = [each for each in done if each["area"] == area]
        print(f"{area:14} {sum(each['noticed'] for each in lines)} of {len(lines)}")
    noticed = sum(each["noticed"] for each in done)
    low, high = interval(noticed, len(done))
    print(f"noticed: {noticed} of {len(done)}, {noticed / len(done):.0%} ({low:.0%}–{high:.0%})")
    for each in done:
        if not each["noticed"]:
            print("not noticed:", each["area"], each["change"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
