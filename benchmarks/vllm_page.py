"""vLLM alone, with its own speculation, and with our draft, on your GPUs: one command, one page to send.

    python -m benchmarks.vllm_page MODEL --draft SMALL_MODEL --run runs/page --vllm venvs/vllm/bin/python

Tries the device first (as `ssd doctor --selftest` does), then measures by `benchmarks.peers`: one engine
after another, so that memory suffices, in another order each turn. Started again, it goes on where it ended.
The page is DIR/page.md; without a GPU it is made on the CPU, and says so.
"""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.flags import parser
from benchmarks.peers.__main__ import main as run_peers

FLAGS = {
    "model:": str,
    "draft": str,
    "run": Path,
    "vllm": None,
    "lookahead": [2, 4],
    "tensor-parallel-size": 1,
    "turns": 3,
    "num-prompts": 8,
    "max-tokens": 128,
    "dtype": "bfloat16",
    "datasets": ["humaneval", "alpaca", "gsm8k", "ultrafeedback"],
    "dataset-dir": None,
    "without-compilation": False,
    "no-selftest": False,
}
SELF_TESTING = (sys.executable, "-m", "ssd", "doctor", "--selftest")
PAGE, SELF_TEST, REPORT = "page.md", "selftest.md", "report.md"


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__, FLAGS).parse_args(words)
    options.run.mkdir(parents=True, exist_ok=True)
    tried = options.run / SELF_TEST
    if not options.no_selftest and not tried.exists():
        tried.write_text("\n".join(self_test_lines()) + "\n")
    run_peers(peers_words(options))
    page = options.run / PAGE
    page.write_text(page_text(options.run))
    print(f"\nThe page: {page}. Please send it with {options.run / 'records.jsonl'}.")
    return 0


def peers_words(options: Namespace) -> list[str]:
    """The same run, as `benchmarks.peers` is told of it."""
    ahead = [f"{kind}{count}" for kind in ("draft", "ssd") for count in options.lookahead]
    words = [
        *(options.model, "--draft", options.draft, "--run", str(options.run), "--one-at-a-time"),
        *("--peers", "vllm", "--ssd-cases", "none", "--peer-cases", ",".join(["plain", *ahead])),
        *("--turns", str(options.turns), "--num-prompts", str(options.num_prompts)),
        *("--max-tokens", str(options.max_tokens), "--dtype", options.dtype),
        *("--tensor-parallel-size", str(options.tensor_parallel_size)),
        *("--datasets", ",".join(options.datasets)),
    ]
    if options.dataset_dir:
        words += ["--dataset-dir", options.dataset_dir]
    if options.without_compilation:
        words.append("--without-compilation")
    return [*words, "--peer-python", f"vllm={options.vllm}"] if options.vllm else words


def self_test_lines() -> Iterator[str]:
    """In a process of its own: what it takes of a GPU's memory must be free again before vLLM starts."""
    print("the self-test runs, for a minute or more", file=sys.stderr, flush=True)
    told = subprocess.run([*SELF_TESTING, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if not told.stdout:
        yield f"The self-test ended with code {told.returncode}, and said nothing."
        return
    found = json.loads(told.stdout)
    yield from (
        f"On {found['device']}:",
        "",
        "| part | what | verdict | found |",
        "| --- | --- | --- | --- |",
    )
    for line in found["lines"]:
        why = f" ({line['why']})" if line["why"] else ""
        yield f"| {line['part']} | {line['what']} | {line['verdict']} | {line['found']}{why} |"


def page_text(folder: Path) -> str:
    """What was measured, and on what; then what the self-test found."""
    report = (
        (folder / REPORT).read_text().replace("# Peers", "# vLLM, its own speculation, and SSD inside it", 1)
    )
    tried = folder / SELF_TEST
    found = tried.read_text() if tried.exists() else "Not run.\n"
    return f"{report}\n## Self-test\n\n{found}"


if __name__ == "__main__":
    sys.exit(main())
