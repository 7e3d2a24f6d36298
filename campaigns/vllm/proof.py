"""Everything that SSD inside vLLM has to show, run after run; ended and started again, it goes on.

    python -m campaigns.vllm.proof --models FOLDER --record proof.jsonl [--texts FOLDER]
        [--only WORD …] [-- OPTION …]

`--models` has folders named smollm2, qwen-0.5b and qwen-1.5b; `--texts` the data sets, by name. Each run is a
command of its own that keeps its results in the record; options after `--` are passed to each and override
its own. tables.py shows what the record holds.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.records import ROOT
from tests.vllm.programs import BED, V2


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    module: str
    options: Sequence[str]
    is_v2: bool = False
    """On vLLM's V2 runner, in the stand-in for a GPU."""


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
    yield equality("qwen bfloat16", large, small, "--dtype", "bfloat16", "--cases", "T=")
    yield equality("qwen bfloat16, head float32", large, small, *head, "--cases", "T=")
    ranks = ("--tensor-parallel", "2", "--temperatures", "0", "0.7", "--cases", "T=", "--patience", "2")
    yield equality("two ranks", small, small, *ranks)
    if texts is not None:
        one_by_one = (
            "--at-once",
            "1",
            "--cases",
            "T=",
            "--temperatures",
            "0",
            "0.7",
            "--draft-dtype",
            "auto",
        )
        prompts = ("--texts", str(texts / "humaneval.jsonl"), "--prompts", "8")
        yield equality("qwen humaneval", large, small, *one_by_one, *prompts)
    yield from _v2_runs(equality, smol, small, large)
    yield Run("audit", "audit", ("--target", str(smol), "--draft", str(smol)))
    # A draft that keeps up with eight streams: of its target's size it would not.
    yield Run("faults", "faults", ("--target", str(large), "--draft", str(small), "--tokens", "32"))
    few = ("--kills", "20", "--freezes", "5", "--endings", "0", "--clients", "4", "--tokens", "32")
    both = ("--target", str(smol), "--draft", str(smol))
    yield Run("v2 asynchronous faults", "faults", (*both, *few, "--asynchronous"), is_v2=True)


def _v2_runs(equality: Callable[..., Run], smol: Path, small: Path, large: Path) -> Iterator[Run]:
    """On vLLM's V2 runner, with synchronous and asynchronous scheduling; each once more by stock vLLM."""
    usual = ("--runner", "v2", "--tokens", "48", "--patience", "2")
    pairs = {
        "smollm2": (smol, smol, ()),
        "preempted": (smol, smol, ("--kv-blocks", "12", "--cases", "T=0.7 seeded", "T=0.0", "common")),
        "two ranks": (small, small, ("--tensor-parallel", "2", "--cases", "T=0.7 seeded", "T=0.0")),
        "qwen": (large, small, ("--cases", "T=0.0", "T=0.7 seeded", "top_p")),
        "bfloat16": (smol, smol, ("--dtype", "bfloat16", "--cases", "T=0.7 seeded")),
    }
    for scheduling in ((), ("--asynchronous",)):
        for name, (target, draft, options) in pairs.items():
            named = " ".join(("v2", *(each.strip("-") for each in scheduling), name))
            words = (target, draft, *usual, *scheduling, *options)
            yield replace(equality(named, *words), is_v2=True)
            yield replace(equality(f"{named} stock", *words, "--stock"), is_v2=True)
    control = (smol, smol, *usual, "--control")
    yield replace(equality("v2 control", *control), is_v2=True)


def _environment(run: Run) -> dict[str, str]:
    folders = (*((BED,) if run.is_v2 else ()), ROOT / "src", ROOT)
    paths = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    return {**os.environ, **paths, **(V2 if run.is_v2 else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[""], help="runs whose names have one of these words")
    parser.add_argument("options", nargs="*", help="of each run, after --")
    arguments = parser.parse_args()
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
            env=_environment(run),
        )
        failed += [run.name] if done.returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
