"""Everything that SSD inside vLLM has to show, run after run; ended and started again, it goes on.

    python -m campaigns.vllm.proof --models FOLDER --record proof.jsonl [--texts FOLDER]
        [--only WORD …] [--table] [-- OPTION …]

`--models` has folders named smollm2, qwen-0.5b and qwen-1.5b; `--texts` the data sets, by name. Each run is a
command of its own that keeps its results in the record; options after `--` are passed to each and override
its own. `--table` only prints what the record holds.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns.record import ROOT, Record


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    module: str
    options: Sequence[str]


def runs(models: Path, texts: Path | None) -> Iterator[Run]:
    smol, small, large = (models / name for name in ("smollm2", "qwen-0.5b", "qwen-1.5b"))

    def equality(name: str, target: Path, draft: Path, *options: str) -> Run:
        return Run(name, "equality", ("--target", str(target), "--draft", str(draft), *options))

    yield equality("smollm2 float32", smol, smol)
    yield equality("smollm2 stock", smol, smol, "--stock")
    yield equality("smollm2 padded", smol, smol, "--padded")
    yield equality("smollm2 bfloat16", smol, smol, "--dtype", "bfloat16")
    head = ("--dtype", "bfloat16", "--head-dtype", "float32")
    yield equality("smollm2 bfloat16, head float32", smol, smol, *head)
    yield equality("qwen float32", large, small)
    yield equality("qwen stock", large, small, "--stock")
    yield equality("qwen bfloat16", large, small, "--dtype", "bfloat16", "--plain")
    yield equality("qwen bfloat16, head float32", large, small, *head, "--plain")
    ranks = ("--tensor-parallel", "2", "--temperatures", "0", "0.7", "--plain", "--patience", "2")
    yield equality("two ranks", small, small, *ranks)
    if texts is not None:
        one_by_one = ("--at-once", "1", "--plain", "--temperatures", "0", "0.7", "--draft-dtype", "auto")
        prompts = ("--texts", str(texts / "humaneval.jsonl"), "--prompts", "8")
        yield equality("qwen humaneval", large, small, *one_by_one, *prompts)
    yield Run("audit", "audit", ("--target", str(smol), "--draft", str(smol)))
    # A draft that keeps up with eight streams: of its target's size it would not.
    yield Run("faults", "faults", ("--target", str(large), "--draft", str(small), "--tokens", "32"))


def table(record: Record) -> str:
    """As docs show it."""
    rows = ["| run | case | texts | equal | hits | tokens a round | else |", "|---|---|---|---|---|---|---|"]
    rows += ["| " + " | ".join(_cells(line)) + " |" for line in record.lines()]
    return "\n".join(rows)


def _cells(line: dict[str, Any]) -> list[str]:
    run = line["run"]
    named = [run["target"]] if run["target"] == run["draft"] else [run["target"], run["draft"]]
    named += [str(run[name]) for name in ("dtype", "prompts") if run.get(name)]
    named += [f"head {run['head_dtype']}"] if run.get("head_dtype") else []
    named += ["padded"] if run.get("padded") else []
    named += [f"{run['tensor_parallel']} ranks"] if run.get("tensor_parallel", 1) > 1 else []
    shown = [str(line.get(name, "")) for name in ("texts", "equal", "share of hits", "tokens a round")]
    return [", ".join(named), line["case"], *shown, _gaps(line)]


def _gaps(line: dict[str, Any]) -> str:
    found = line.get("differences")
    if found is None:
        return ""
    gaps = ", ".join(str(each["gap"]) for each in found) or "none"
    bound = f" (bound {found[0]['bound']})" if found else ""
    return f"gaps {gaps}{bound}; unexplained: {line['unexplained']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[""], help="runs whose names have one of these words")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("options", nargs="*", help="of each run, after --")
    arguments = parser.parse_args()
    record = Record(arguments.record, {})
    if arguments.table:
        print(table(record))
        return
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    failed = []
    for run in runs(arguments.models, arguments.texts):
        if not any(word in run.name for word in arguments.only):
            continue
        print(f"== {run.name}", flush=True)
        command = [sys.executable, "-m", f"campaigns.vllm.{run.module}", *run.options, *arguments.options]
        done = subprocess.run(
            [*command, "--record", str(arguments.record)],
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
        )
        failed += [run.name] if done.returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
