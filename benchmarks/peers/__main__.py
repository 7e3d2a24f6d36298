"""Measure other engines beside this one: the same prompts, weights, lengths and cores, in turns.

    python -m benchmarks.peers MODEL --draft SMALL_MODEL --setup-help
    python -m benchmarks.peers MODEL --draft SMALL_MODEL --run runs/peers

Engines are vllm, llamacpp, transformers and this one. One that is not installed is left out by name, with the
commands that would install it. Started again with the same settings, a run goes on. See docs/peers.md.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.process import WorkerPlan
from benchmarks.peers.registry import PEERS, SSD, Peer, is_gguf, weights_for
from benchmarks.peers.run import PeersRun, Prompts
from ssd.bench.datasets import dataset_label, digest_of, load_prompts
from ssd.cli.options import parse_cores
from ssd.models.checkpoint import open_checkpoint
from ssd.models.hub import local_model
from ssd.runtime.cores import share_out

_CHECK = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = made.add_argument
    add("model", metavar="MODEL", help="a folder with safetensors, or a GGUF file for ssd and llamacpp")
    add("--draft", help="a small one of the same tokenizer")
    add("--run", type=Path, metavar="DIR", help="where the run is kept")
    add("--setup-help", action="store_true", help="show the commands that install the peers, and end")
    add("--peers", type=_split, default=[each for each in PEERS if each != SSD], metavar="NAMES")
    for_python = "a peer's interpreter; else venvs/NAME/bin/python, else this one"
    add("--peer-python", action="append", default=[], metavar="NAME=PATH", help=for_python)
    add("--llama-server", metavar="PATH", help="else the one on the PATH")
    add("--ssd-cases", type=_split, metavar="CASES", help="default: ar,ssd,ssd+int8; alone: ar+allcores")
    add("--target-precision", choices=("model", "int8"), default="model", help="of this engine's target")
    for_cases = "plain; draftK: K tokens ahead; draft: the peer's own number"
    add("--peer-cases", type=_split, default=["plain", "draft", "draft4"], metavar="CASES", help=for_cases)
    add("--datasets", type=_split, default=["humaneval", "alpaca", "gsm8k"], help="names, or .jsonl files")
    folder = os.environ.get("SSD_DATASET_DIR")
    add("--dataset-dir", type=Path, default=folder, metavar="DIR", help="of NAME*.jsonl; else the hub")
    add("--num-prompts", type=int, default=12, metavar="N", help="of each data set")
    add("--turns", type=int, default=1, metavar="N", help="how often each text is written")
    add("--max-tokens", type=int, default=96, metavar="N", help="written after each prompt")
    add("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="of all engines")
    add("--cores", default="", help="of this engine's target, such as 0; peers get both")
    add("--draft-cores", default="", help="of its draft")
    return made


def main(words: Sequence[str] | None = None) -> None:
    flags = parser()
    options = flags.parse_args(words)
    try:
        if options.setup_help:
            for name in options.peers:
                print(f"# {name}", *_setup(PEERS[name], options), "", sep="\n")
        else:
            _measure(options)
    except ValueError as error:
        flags.exit(2, f"error: {error}\n")


def _measure(options: argparse.Namespace) -> None:
    if options.run is None:
        raise ValueError("say where the run is kept: --run DIR")
    if unknown := [name for name in options.peers if name not in PEERS]:
        raise ValueError(f"no peer {unknown[0]!r}: use {', '.join(PEERS)}")
    if wrong := [case for case in options.peer_cases if not re.fullmatch(r"plain|draft\d*", case)]:
        raise ValueError(f"--peer-cases: {wrong[0]!r} is none; use plain, draft, draft3 …")
    options.model = local_model(options.model, hf_cache=None)
    options.draft = local_model(options.draft, hf_cache=None) if options.draft else None
    options.ssd_cases = options.ssd_cases or (["ar", "ssd", "ssd+int8"] if options.draft else ["ar+allcores"])
    options.peer_cases = options.peer_cases if options.draft else ["plain"]
    texts = {
        dataset_label(name): load_prompts(name, options.dataset_dir, options.num_prompts)
        for name in options.datasets
    }
    tokenizer = open_checkpoint(options.model).tokenizer()
    prompts: Prompts = {name: [list(tokenizer(each).input_ids) for each in of] for name, of in texts.items()}
    longest = max(len(prompt) for all_of in prompts.values() for prompt in all_of)
    plans = list[WorkerPlan]()
    for name in dict.fromkeys((SSD, *options.peers)):
        try:
            # In steps, since engines compile for a size; with room for what is guessed beyond the end.
            plans += _plans(PEERS[name], options, -(-(longest + options.max_tokens + 32) // 256) * 256)
        except LookupError as error:
            print(f"without {name}: {error.args[0]}")
    unkept = ("run", "setup_help", "peer_python", "llama_server", "dataset_dir")
    settings: dict[str, Any] = {name: value for name, value in vars(options).items() if name not in unkept}
    settings["prompts"] = {name: digest_of(all_of) for name, all_of in texts.items()}
    run = PeersRun(options.run, settings, plans, lambda words: print(words, flush=True))
    run.go_on(prompts)
    print(run.report())


def _plans(peer: Peer, options: argparse.Namespace, max_model_len: int) -> list[WorkerPlan]:
    """Of one engine; LookupError says why it cannot take part."""
    is_ours = peer.name == SSD
    cases = options.ssd_cases if is_ours else options.peer_cases
    cases = [case for case in cases if peer.has_own_length or case != "draft"]
    python, program = _python_of(peer, options), options.llama_server or shutil.which("llama-server")
    to_install = "to install it: " + "; ".join(_setup(peer, options))
    if is_gguf(options.model) and not peer.reads_gguf:
        raise LookupError("it needs the model's folder, and this run is of a GGUF file")
    if not peer.reads_folders and not is_gguf(options.model) and options.dtype != "bfloat16":
        raise LookupError("its converted files are in bfloat16: use --dtype bfloat16, or a GGUF file")
    if peer.module and not _can_import(python, peer.module):
        raise LookupError(f"{python} cannot import {peer.module}; {to_install}")
    if not peer.module and not program:
        raise LookupError(f"no program is named, and none is on the PATH; {to_install}")
    weights = [weights_for(peer, model) for model in (options.model, options.draft) if model]
    if missing := [each for each in weights if not each.exists()]:
        raise LookupError(f"{missing[0]} is missing; {to_install}")
    cores = share_out(target=parse_cores(options.cores), draft=parse_cores(options.draft_cores))
    job: dict[str, Any] = {
        "model": str(weights[0]),
        "dtype": options.dtype,
        "precision": options.target_precision,
        # This engine moves its two halves to their cores by itself.
        "cores": [] if is_ours else [*cores.target, *cores.draft],
        "target_cores": list(cores.target),
        "draft_cores": list(cores.draft),
        "is_as_stored": is_gguf(options.model),
        "max_model_len": max_model_len,
        "packages": list(peer.packages),
        "program": program,
    }
    plans = list[WorkerPlan]()
    for group in [cases] if peer.shares_weights else [[case] for case in cases]:
        drafts = options.draft and any("draft" in case or case[:2] in ("sd", "ss") for case in group)
        own = {**job, "cases": group, "draft": str(weights[1]) if drafts else None}
        plans.append(WorkerPlan(peer=peer, cases=group, python=python, job=own))
    return plans


def _python_of(peer: Peer, options: argparse.Namespace) -> Path:
    said = dict(each.split("=", 1) for each in options.peer_python)
    made = Path("venvs") / peer.name / "bin/python"
    return Path(said.get(peer.name) or (made if made.exists() else sys.executable)).absolute()


def _can_import(python: Path, module: str) -> bool:
    if python == Path(sys.executable).absolute():
        return importlib.util.find_spec(module) is not None
    return subprocess.run([python, "-c", _CHECK, module], capture_output=True, timeout=60).returncode == 0


def _setup(peer: Peer, options: argparse.Namespace) -> list[str]:
    models = [each for each in (options.model, options.draft) if each]
    return [
        line.format(venv=f"venvs/{peer.name}", model=model)
        for line in peer.setup
        for model in (models if "{model}" in line else [""])
    ]


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    main()
