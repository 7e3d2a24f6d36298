"""AR = SD = SSD, of trees and of chains, token for token, on real models: resumable, with its differences.

    python -m campaigns.e2e.exactness --target MODEL --draft itself=MODEL --draft cut=4 --draft random \
        --prompts FOLDER --run runs/smollm2 [--prompts-per-set 12] [--batches 16,1] [--loose]

Every finished part is a line of FOLDER/records.jsonl; started again, the run goes on where it ended.
A draft is named NAME=PATH, cut=LAYERS (the target's first layers) or random (its shape, other weights).
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from campaigns.e2e.invariance import load_for_ties, tie_at
from campaigns.e2e.other_drafts import cut_draft, random_draft
from ssd import LLM, SamplingParams
from ssd.engine.prompts import Prompt

TEMPERATURES = (0.0, 0.7, 1.0)
CHAINS = "ssd of one path"
"""Without trees."""
SETS = ("alpaca", "gsm8k", "humaneval", "ultrafeedback")


@dataclass(frozen=True, slots=True)
class Part:
    """What one line of the records holds: one set at one temperature, in one mode and batch size."""

    mode: str
    draft: str
    batch: int
    dataset: str
    temperature: float

    @property
    def prompts_key(self) -> tuple[str, float]:
        return self.dataset, self.temperature


@dataclass(frozen=True, slots=True)
class Plan:
    target: str
    drafts: dict[str, str]
    prompts: Path
    prompts_per_set: int
    max_tokens: int
    max_model_len: int
    batches: tuple[int, ...]
    deterministic: bool
    cores: tuple[int, ...]
    draft_cores: tuple[int, ...]

    def parts(self) -> list[Part]:
        engines = [("ar", "none"), *itertools.product(("ssd", CHAINS, "sd"), self.drafts)]
        return [
            Part(mode, draft, batch, dataset, temperature)
            for batch in self.batches
            for mode, draft in engines
            for dataset in SETS
            for temperature in TEMPERATURES
            if (self.prompts / f"{dataset}.jsonl").is_file()
        ]

    def texts(self, dataset: str) -> list[Prompt]:
        lines = (self.prompts / f"{dataset}.jsonl").read_text().splitlines()[: self.prompts_per_set]
        return [json.loads(line)["text"] for line in lines]

    def params(self, temperature: float) -> list[SamplingParams]:
        return [
            SamplingParams(
                temperature=temperature, seed=1000 + index, max_tokens=self.max_tokens, ignore_eos=True
            )
            for index in range(self.prompts_per_set)
        ]

    def engine(self, mode: str, draft: str, batch: int) -> LLM:
        settings: dict[str, Any] = {"mode": mode.split()[0], "enable_trees": mode != CHAINS}
        if mode != "ar":
            settings["draft"] = {"model": self.drafts[draft]}
        if settings["mode"] == "ssd":
            settings["draft"]["cores"] = self.draft_cores
        return LLM(
            self.target,
            device="cpu",
            cores=self.cores,
            deterministic=self.deterministic,
            max_num_seqs=batch,
            max_model_len=self.max_model_len,
            show_progress=False,
            **settings,
        )


class Records:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "records.jsonl"
        self.done: dict[Part, dict[str, Any]] = {}
        for line in self._file.read_text().splitlines() if self._file.exists() else []:
            record = json.loads(line)
            self.done[Part(**record.pop("part"))] = record

    def add(self, part: Part, record: dict[str, Any]) -> None:
        self.done[part] = record
        with self._file.open("a") as file:
            file.write(json.dumps({"part": asdict(part), **record}) + "\n")


def run(plan: Plan, records: Records) -> None:
    missing = [part for part in plan.parts() if part not in records.done]
    for (mode, draft, batch), group in itertools.groupby(missing, lambda p: (p.mode, p.draft, p.batch)):
        with plan.engine(mode, draft, batch) as llm:
            for part in group:
                texts = plan.texts(part.dataset)
                outputs = llm.generate(texts, plan.params(part.temperature)[: len(texts)], use_tqdm=False)
                stats = [output.outputs[0].speculation for output in outputs]
                record = {
                    "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                    "rounds": sum(each.rounds for each in stats),
                    "accepted": sum(each.accepted for each in stats),
                    "drafted": sum(each.drafted for each in stats),
                    "hits": sum(each.hits for each in stats),
                }
                records.add(part, record)
                print(f"{part}: {record['rounds']} rounds, {record['accepted']} accepted", flush=True)


def differences(plan: Plan, records: Records) -> Iterator[tuple[Part, int, int]]:
    """Each sequence that is not the plain one, alone: its part, number and first differing place."""
    baseline = {
        part.prompts_key: record["tokens"]
        for part, record in records.done.items()
        if part.mode == "ar" and part.batch == min(plan.batches)
    }
    for part, record in records.done.items():
        for index, tokens in enumerate(record["tokens"]):
            expected = baseline[part.prompts_key][index]
            if tokens != expected:
                place = next(i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b)
                yield part, index, place


def _engine_of(part: Part) -> tuple[int, str, str]:
    return part.batch, part.mode, part.draft


def report(plan: Plan, records: Records) -> int:
    found = list(differences(plan, records))
    print(
        f"{'mode':16}{'draft':9}{'batch':>6}{'sequences':>11}{'tokens':>8}{'accepted/drafted':>18}{'hits/rounds':>13}{'differ':>8}"
    )
    for key, group in itertools.groupby(sorted(records.done, key=_engine_of), _engine_of):
        done = [records.done[part] for part in group]
        tokens = [each for record in done for each in record["tokens"]]
        total = {name: sum(r[name] for r in done) for name in ("accepted", "drafted", "hits", "rounds")}
        differ = sum(_engine_of(part) == key for part, _index, _place in found)
        print(
            f"{key[1]:16}{key[2]:9}{key[0]:6}{len(tokens):11}{sum(map(len, tokens)):8}"
            f"{total['accepted'] / max(1, total['drafted']):18.2f}"
            f"{total['hits'] / max(1, total['rounds']):13.2f}{differ:8}"
        )
    if not plan.deterministic and found:
        show_ties(plan, records, found)
    print(f"{len(found)} sequences differ")
    return len(found)


def show_ties(plan: Plan, records: Records, found: Sequence[tuple[Part, int, int]]) -> None:
    """The gap of the two best tokens, in logits, where a sequence first differs."""
    loaded = load_for_ties(plan.target)
    gaps = []
    for part, index, place in found:
        prompt = loaded.checkpoint.tokenizer()(plan.texts(part.dataset)[index]).input_ids
        params = plan.params(part.temperature)[index]
        tokens = records.done[part]["tokens"][index][:place]
        gaps.append(tie_at(loaded, prompt, tokens, params))
        print(
            f"    {part.mode} {part.draft} batch {part.batch} {part.dataset} T={part.temperature} "
            f"sequence {index} place {place}: gap {gaps[-1]:.4f}"
        )
    print(f"gaps: median {sorted(gaps)[len(gaps) // 2]:.4f}, largest {max(gaps):.4f}")


def parse() -> tuple[Plan, Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", action="append", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--prompts-per-set", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--batches", default="16,1")
    parser.add_argument("--loose", action="store_true")
    parser.add_argument("--cores", default="0")
    parser.add_argument("--draft-cores", default="1")
    options = parser.parse_args()
    plan = Plan(
        options.target,
        dict(_draft(text, options.target, options.run) for text in options.draft),
        options.prompts,
        options.prompts_per_set,
        options.max_tokens,
        options.max_model_len,
        _numbers(options.batches),
        not options.loose,
        _numbers(options.cores),
        _numbers(options.draft_cores),
    )
    return plan, options.run


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def _draft(text: str, target: str, folder: Path) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if name == "cut":
        return name, str(cut_draft(Path(target), int(value), folder / "cut"))
    if name == "random":
        return name, str(random_draft(Path(target), folder / "random"))
    return name, value


def main() -> None:
    plan, folder = parse()
    records = Records(folder)
    run(plan, records)
    num_different = report(plan, records)
    sys.exit(1 if num_different and plan.deterministic else 0)


if __name__ == "__main__":
    main()
