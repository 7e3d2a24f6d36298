"""Chains against trees with real models: tokens a verification and speed, in turns, by data set.

    python -m benchmarks.tree_turns --target MODEL --draft SMALL --dataset-dir FOLDER \\
        [--datasets humaneval alpaca gsm8k ultrafeedback] [--temperature 0 1] [--batch 1 8] [--texts 6] \\
        [--max-tokens 24] [--mode ssd] [--core 0] [--draft-core 1] [--record docs/records/tree_turns.jsonl]

One engine. Each batch of prompts is read once, then decoded in both forms, in an order that is drawn, from
the prefix cache: what is timed are verifications. Both must write the same tokens, up to near-ties. Each pair
is a line of the record as soon as it is there; a run that was ended goes on. Printed: by data set,
temperature and batch size, tokens a verification of both, and the ratio tree over chain of tokens a second
within a batch, with its interval.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.flags import parser
from ssd import LLM, SamplingParams
from ssd.bench.datasets import NAMES, load_prompts
from ssd.bench.statistics import paired_ratio
from ssd.config import TREES_PER_STEP

FLAGS = {
    "target": str, "draft": str, "dataset-dir": None, "datasets": [*NAMES], "temperature": [0.0, 1.0],
    "batch": [1, 8], "texts": 6, "max-tokens": 24, "mode": "ssd", "core": 0, "draft-core": 1, "record": None,
}  # fmt: skip
FORMS = ("chain", "tree")
CELL = ("mode", "dataset", "temperature", "batch")
Line = dict[str, Any]


def cells(options: argparse.Namespace) -> Iterator[Line]:
    """What is measured, a batch of texts at a time: an interruption leaves all data sets equally far."""
    for number, *cell in product(range(options.texts), options.datasets, options.temperature, options.batch):
        yield dict(zip(CELL, (options.mode, *cell), strict=True), number=number)


class Turns:
    def __init__(self, llm: LLM, options: argparse.Namespace) -> None:
        self._llm, self._options = llm, options
        self._draw = random.Random(0)

    def line(self, cell: Line) -> Line:
        """The same texts in both forms."""
        folder = None if self._options.dataset_dir is None else Path(self._options.dataset_dir)
        batch = cell["batch"]
        prompts = load_prompts(cell["dataset"], folder, batch, batch * cell["number"])
        self._run(prompts, cell["temperature"], 1)  # Into the prefix cache.
        found = {
            form: self._timed(form, prompts, cell["temperature"]) for form in self._draw.sample(FORMS, 2)
        }
        same = [chain == tree for chain, tree in zip(found["chain"][1], found["tree"][1], strict=True)]
        return cell | {form: found[form][0] for form in FORMS} | {"same": sum(same), "texts": len(same)}

    def _timed(self, form: str, prompts: list[str], temperature: float) -> tuple[Line, list[Sequence[int]]]:
        proposer: Any = self._llm._engine.core.decoder.proposer
        getattr(proposer, "policy", proposer).num_trees = TREES_PER_STEP * (form == "tree")
        started = time.perf_counter()
        outputs = self._run(prompts, temperature, self._options.max_tokens)
        counts = [output.speculation for output in outputs]
        return {
            "seconds": round(time.perf_counter() - started, 4),
            "tokens": sum(len(output.token_ids) for output in outputs),
            **{
                name: sum(getattr(each, name) for each in counts)
                for name in ("rounds", "drafted", "accepted")
            },
        }, [output.token_ids for output in outputs]

    def _run(self, prompts: list[str], temperature: float, max_tokens: int) -> list[Any]:
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=max_tokens, ignore_eos=True)
        return [each.outputs[0] for each in self._llm.generate(prompts, params, use_tqdm=False)]


def measure(llm: LLM, options: argparse.Namespace) -> list[Line]:
    turns, record = Turns(llm, options), None if options.record is None else Path(options.record)
    lines = [] if record is None or not record.exists() else list(map(json.loads, record.open()))
    done = {tuple(line[name] for name in (*CELL, "number")) for line in lines}
    for cell in cells(options):
        if tuple(cell.values()) in done:
            continue
        if not lines:
            turns.line(cell)  # The first steps of all, and what they teach the controller, are not kept.
        lines.append(turns.line(cell))
        if record is not None:
            with record.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    return lines


def rate(line: Line, form: str) -> float:
    return float(line[form]["tokens"] / line[form]["seconds"])


def show(lines: Sequence[Line]) -> None:
    print("| cell | tokens a verification, chain | tree | rows, chain | tree | tree over chain | same |")
    print("|---|---|---|---|---|---|---|")
    for cell in dict.fromkeys(tuple(line[name] for name in CELL) for line in lines):
        mine = [line for line in lines if tuple(line[name] for name in CELL) == cell]
        rounds = {form: sum(line[form]["rounds"] for line in mine) for form in FORMS}
        counts = [
            f"{plus + sum(line[form][name] for line in mine) / rounds[form]:.2f}"
            for name, plus in (("accepted", 1), ("drafted", 1))
            for form in FORMS
        ]
        ratio = paired_ratio([rate(line, "tree") for line in mine], [rate(line, "chain") for line in mine])
        same = f"{sum(line['same'] for line in mine)} of {sum(line['texts'] for line in mine)}"
        print("|", " | ".join([" ".join(map(str, cell)), *counts, str(ratio), same]), "|", flush=True)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    cores = {"cores": (options.draft_core,)} if options.mode == "ssd" else {}
    settings: dict[str, Any] = {"mode": options.mode, "draft": {"model": options.draft, **cores}}
    settings |= {"device": "cpu", "cores": (options.core,), "max_num_seqs": max(options.batch)}
    with LLM(options.target, show_progress=False, max_model_len=2048, **settings) as llm:
        show(measure(llm, options))


if __name__ == "__main__":
    main()
