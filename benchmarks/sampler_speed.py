"""What deciding tokens costs: this tree against another revision, on the same logits, call by call in turns.

    python -m benchmarks.sampler_speed [--against REVISION] [--turns 9] [--threads 1] [--rows 1,16,80]

Each tree runs in a process of its own, and only one computes at a time. Logits are drawn: "sure" ones look
like a model's (a few tokens far above a broad bulk), "flat" ones are the worst case, where noise for every
token cannot be avoided. Printed are medians in µs of processor time, which a shared machine disturbs less
than the clock, and the median of old over new within a turn. Both trees must decide the same tokens.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.flags import parser

FLAGS = {"against": "HEAD", "turns": 9, "threads": 1, "rows": "1,16,80", "serve": False}
ROOT = Path(__file__).resolve().parent.parent
VOCABULARIES = (49_152, 151_936)
SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "T=0.8": {"temperature": 0.8},
    "T=0.8 p=0.9": {"temperature": 0.8, "top_p": 0.9},
    "T=0.8 p=0.9 k=50": {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
    "T=0.8 penalties": {
        "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.2,
    },
}  # fmt: skip
PROMPT = 2000


class Tree:
    """A revision's sampler, in a process of its own."""

    def __init__(self, source: Path, threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.sampler_speed", "--serve", "--threads", str(threads)]
        pipe, env = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(source)}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, cwd=ROOT)

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def serve(threads: int) -> None:
    """Prepares a case, then decides it once for each line that comes in."""
    import torch

    from ssd.sampling import History, SamplingParams, SamplingRow, sample

    torch.set_num_threads(threads)
    logits, rows = torch.empty(0), []
    for line in sys.stdin:
        request = json.loads(line)
        if "rows" in request:
            generator = torch.Generator().manual_seed(1)
            spread = 1.0 if request["flat"] else 2.5
            logits = torch.randn(request["rows"], request["vocab"], generator=generator) * spread
            if not request["flat"]:
                leaders = torch.randint(request["vocab"], (request["rows"], 20), generator=generator)
                logits.scatter_add_(1, leaders, torch.rand(leaders.shape, generator=generator) * 18)
            params = SamplingParams(**request["params"])
            prompt = tuple((7 * i) % 40_000 for i in range(PROMPT))
            rows = [
                SamplingRow(params, seed, PROMPT + 50 + seed, prompt, History(range(50)))
                for seed in range(request["rows"])
            ]
        sample(logits, rows)
        began = time.process_time()
        decided = sample(logits, rows)
        elapsed = time.process_time() - began
        print(json.dumps({"us": elapsed * 1e6, "tokens": [each.token for each in decided]}), flush=True)


def measure(old: Tree, new: Tree, case: dict[str, Any], turns: int) -> str:
    first = [tree.ask(**case)["tokens"] for tree in (old, new)]
    if first[0] != first[1]:
        raise SystemExit(f"the trees decide different tokens: {case}")
    # A call that is short is timed more often.
    turns *= 5 if case["rows"] == 1 else 1
    times = [(old.ask()["us"], new.ask()["us"]) for _ in range(turns)]
    before, after = (statistics.median(each) for each in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    return f"{before:9.0f} {after:9.0f}   {ratio:6.2f} x"


def compare(old: Tree, new: Tree, row_counts: list[int], turns: int) -> None:
    print(f"{'logits':6} {'vocab':>7} {'rows':>4}  {'':18} {'old':>9} {'new':>9} µs", flush=True)
    for kind, vocab, rows, name in itertools.product(("sure", "flat"), VOCABULARIES, row_counts, SETTINGS):
        case = {"vocab": vocab, "rows": rows, "params": SETTINGS[name], "flat": kind == "flat"}
        print(f"{kind:6} {vocab:7} {rows:4}  {name:18} {measure(old, new, case, turns)}", flush=True)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    if options.serve:
        serve(options.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", options.against, "src"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        old, new = Tree(Path(folder) / "src", options.threads), Tree(ROOT / "src", options.threads)
        compare(old, new, [int(rows) for rows in options.rows.split(",")], options.turns)
        old.end()
        new.end()


if __name__ == "__main__":
    main()
