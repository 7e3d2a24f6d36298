"""AR, SD and SSD side by side: the same target, the same prompts, in turns, with the roof beside them.

    python bench/ssd_speed.py --target MODEL --draft MODEL --prompts humaneval.jsonl --run runs/humaneval
    python bench/ssd_speed.py … --modes ar,sd4,ssd,sd4+int8,ssd+int8 --num-prompts 12 --max-tokens 96

Each prompt runs in every mode before the next one starts, so drift of the machine hits all alike; the
order of modes turns with each prompt. Records are kept as they are made: started again, the run goes on.
A mode is ar, sdK or ssd[K], with +int8, +head32768, +width8, +lookup0, +growth=…, +backup=…, +ratio,
+saguaro0.5, +t1.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from ssd import SamplingParams
from ssd.config import EngineConfig, Precision
from ssd.decoding.decoder import Decoder
from ssd.engine.build import Engine, build_engine, make_decoder
from ssd.engine.outputs import RequestOutput
from ssd.runtime.loading import LoadedModel, load_draft
from ssd.runtime.runner import RunnerRow


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    settings: tuple[tuple[str, Any], ...]
    temperature: float = 0.0


def parse_mode(text: str) -> Mode:
    kind, *extras = text.split("+")
    settings: dict[str, Any] = {"mode": kind.rstrip("0123456789")}
    if kind[len(settings["mode"]) :]:
        settings["lookahead"] = int(kind[len(settings["mode"]) :])
    temperature = 0.0
    for extra in extras:
        if extra == "int8":
            settings["draft_precision"] = "int8"
        elif extra == "ratio":
            settings["acceptance"] = "ratio"
        elif "=" in extra:
            name, _, value = extra.partition("=")
            settings[name] = value
        elif extra.startswith("t"):
            temperature = float(extra[1:])
        else:
            name = extra.rstrip("0123456789.")
            number = extra[len(name) :]
            settings[
                {"head": "draft_head", "width": "draft_width", "lookup": "draft_lookup"}.get(name, name)
            ] = float(number) if "." in number else int(number)
    return Mode(text, tuple(settings.items()), temperature)


class Bench:
    """One target, a decoder for each mode, and a bare draft for the roof."""

    def __init__(self, options: argparse.Namespace, modes: Sequence[Mode]) -> None:
        common = EngineConfig(
            model=options.target, device="cpu", cores=(options.core,), max_model_len=2048, max_num_seqs=16
        )
        self.engine: Engine = build_engine(common)
        draft = replace(common, model=options.draft)
        self.drafts = {
            precision: load_draft(draft, precision=precision, head=None) for precision in get_args(Precision)
        }
        self._plain: Decoder = self.engine.core._decoder
        self._decoders = {
            mode.name: self._decoder(common, mode, options) for mode in modes if mode.name != "ar"
        }

    def _decoder(self, common: EngineConfig, mode: Mode, options: argparse.Namespace) -> Decoder:
        settings: dict[str, Any] = dict(mode.settings)
        settings.setdefault("draft", options.draft)
        settings["draft_cores"] = (options.draft_core,)
        return make_decoder(replace(common, **settings), self.engine.loaded, self.engine.requests.tokenizer)

    def run(self, prompt: str, mode: Mode, max_tokens: int, seed: int) -> dict[str, Any]:
        core = self.engine.core
        decoder = self._decoders.get(mode.name, self._plain)
        core._decoder, core._acceptance = decoder, dict(mode.settings).get("acceptance", "coupled")
        params = SamplingParams(
            temperature=mode.temperature, seed=seed, max_tokens=max_tokens, ignore_eos=True
        )
        core.add(self.engine.requests.request(prompt, params))
        before = core.stats
        outputs: list[RequestOutput] = []
        while core.has_work:
            outputs += core.step().finished
        after, timings = core.stats, outputs[0].timings
        stats = outputs[0].outputs[0].speculation
        draft_steps = after.draft.num_steps - before.draft.num_steps if after.draft and before.draft else 0
        draft_seconds = (
            after.draft.draft_seconds - before.draft.draft_seconds if after.draft and before.draft else 0.0
        )
        return {
            "seconds_per_token": timings.per_output_token,
            "first_token": timings.first_token,
            "tokens": list(outputs[0].outputs[0].token_ids),
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "hits": stats.hits,
            "late": stats.late,
            "unknown": stats.unknown,
            "unheard": stats.unheard,
            "verify_seconds": after.verify_seconds - before.verify_seconds,
            "wait_seconds": after.wait_seconds - before.wait_seconds,
            "step_seconds": after.step_seconds - before.step_seconds,
            "draft_steps": draft_steps,
            "draft_seconds": draft_seconds,
        }

    def close(self) -> None:
        for decoder in self._decoders.values():
            decoder.close()

    def bare_times(self) -> dict[str, float]:
        """T_v of a whole speculation, T_d of a full width: in turns, so that drift hits both alike."""
        wanted = {"T_v": (self.engine.loaded, 9), "T_v1": (self.engine.loaded, 1)}
        wanted |= {f"T_d {precision}": (draft, 12) for precision, draft in self.drafts.items()}
        times = defaultdict[str, list[float]](list)
        for _ in range(3):
            for name, (loaded, rows) in wanted.items():
                times[name].append(bare_forward(loaded, rows))
        return {name: statistics.median(each) for name, each in times.items()}

    def agreement(self, prompt: str, tokens: Sequence[int]) -> list[bool]:
        """Of each greedy token, whether the draft would have guessed it, given all before it."""
        ids = [*self.engine.requests.tokenizer(prompt).input_ids, *tokens]
        blocks = list(range(-(-len(ids) // 16)))
        rows = [RunnerRow(ids[:-1], 0, blocks, len(tokens), generated=False)]
        guesses = self.drafts["model"].runner.forward(rows).argmax(-1).tolist()
        return [guess == token for guess, token in zip(guesses, tokens, strict=True)]


def bare_forward(loaded: LoadedModel, rows: int, context: int = 256) -> float:
    """Seconds of a forward of so many rows after a context (whose content does not matter here)."""
    blocks = list(range(-(-(context + rows) // 16)))
    started = time.perf_counter()
    loaded.runner.forward([RunnerRow([1] * rows, context, blocks, rows, generated=True)])
    return time.perf_counter() - started


def unlimited(agrees: Sequence[bool], lookahead: int) -> float:
    """Tokens a round with a draft that always has a whole speculation ready."""
    place, rounds = 0, 0
    while place < len(agrees):
        run = 0
        while run < lookahead and place + run < len(agrees) and agrees[place + run]:
            run += 1
        place += run + 1
        rounds += 1
    return len(agrees) / rounds


def record(options: argparse.Namespace, modes: Sequence[Mode], file: Path) -> None:
    done = {(each["prompt"], each["mode"]) for each in read(file)}
    texts = [json.loads(line)["text"] for line in options.prompts.read_text().splitlines()]
    texts = texts[options.first : options.first + options.num_prompts]
    if all((index, mode.name) in done for index in range(len(texts)) for mode in modes):
        return
    bench = Bench(options, modes)
    for mode in modes:  # outside the clock
        bench.run(texts[0], mode, 8, 0)
    with file.open("a") as out:
        for index, text in enumerate(texts):
            turned = [*modes[index % len(modes) :], *modes[: index % len(modes)]]
            for mode in turned:
                if (index, mode.name) in done:
                    continue
                found = bench.run(text, mode, options.max_tokens, 1000 + index)
                if mode.name == "ar":
                    found["agrees"] = bench.agreement(text, found["tokens"])
                    found |= bench.bare_times()
                out.write(json.dumps({"prompt": index, "mode": mode.name, **found}) + "\n")
                out.flush()
                print(f"{index:3} {mode.name:24} {1 / found['seconds_per_token']:6.2f} tok/s", flush=True)
    bench.close()


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


COLUMNS = {
    "mode": 26, "tok/s": 7, "× AR (quartiles)": 20, "acc/round": 11, "hits": 6, "late": 6, "unknown": 9,
    "verify": 8, "wait": 6, "host": 6, "tok/step": 10, "differ": 8,
}  # fmt: skip
SUMS = (
    "rounds", "accepted", "hits", "late", "unknown", "unheard", "verify_seconds", "wait_seconds",
    "step_seconds", "draft_steps",
)  # fmt: skip
Runs = dict[int, dict[str, Any]]


def report(records: Sequence[dict[str, Any]], modes: Sequence[Mode]) -> None:
    by_mode = defaultdict[str, Runs](dict)
    for each in records:
        by_mode[each["mode"]][each["prompt"]] = each
    plain = by_mode.get("ar", {})
    print("".join(f"{name:>{width}}" for name, width in COLUMNS.items()))
    for mode in modes:
        cells = _cells(mode, by_mode[mode.name], plain)
        print("".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True)))
    _print_over_sd(by_mode, modes)
    if plain:
        _print_roof(list(plain.values()), by_mode)


def _cells(mode: Mode, runs: Runs, plain: Runs) -> list[str]:
    total = {name: sum(each[name] for each in runs.values()) for name in SUMS}
    known = max(1, total["hits"] + total["late"] + total["unknown"] + total["unheard"])
    seconds = total["step_seconds"]
    shares = [total["verify_seconds"] / seconds, total["wait_seconds"] / seconds]
    num_tokens = sum(len(each["tokens"]) for each in runs.values())
    differ = sum(each["tokens"] != plain[i]["tokens"] for i, each in runs.items() if i in plain)
    return [
        mode.name,
        f"{statistics.median(1 / each['seconds_per_token'] for each in runs.values()):.2f}",
        _ratio(runs, plain),
        f"{total['accepted'] / total['rounds']:.2f}",
        *(f"{total[name] / known:.2f}" for name in ("hits", "late", "unknown")),
        *(f"{share:.1%}" for share in (*shares, 1 - sum(shares))),
        f"{num_tokens / total['draft_steps']:.2f}" if total["draft_steps"] else "-",
        str(differ) if mode.temperature == 0 else "-",
    ]


def _ratio(runs: Runs, plain: Runs) -> str:
    """Median and quartiles over prompts of how much faster a mode was than plain decoding of the same one."""
    both = [(plain[index], each) for index, each in runs.items() if index in plain]
    if len(both) < 2:
        return "-"
    low, middle, high = statistics.quantiles(
        [slow["seconds_per_token"] / fast["seconds_per_token"] for slow, fast in both], n=4
    )
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def _print_over_sd(by_mode: dict[str, Runs], modes: Sequence[Mode]) -> None:
    """SSD against SD with the same draft, and what a round of it consists of."""
    for mode in modes:
        kind, *extras = mode.name.split("+")
        runs = list(by_mode[mode.name].values())
        if not kind.startswith("ssd") or not runs:
            continue
        for other in modes:
            other_kind, *other_extras = other.name.split("+")
            if other_kind.startswith("sd") and other_extras == extras:
                ratio = _ratio(by_mode[mode.name], by_mode[other.name])
                print(f"{mode.name} over {other.name}: {ratio}")
        total = {name: sum(each[name] for each in runs) for name in (*SUMS, "draft_seconds")}
        print(
            f"{mode.name}: verifying {total['verify_seconds'] / total['rounds'] * 1e3:.0f} ms, "
            f"draft steps {total['draft_seconds'] / max(1, total['draft_steps']) * 1e3:.0f} ms, as they ran"
        )


def _print_roof(runs: Sequence[dict[str, Any]], by_mode: dict[str, Runs]) -> None:
    verify = statistics.median(each["T_v"] for each in runs)
    tokens = statistics.mean(unlimited(each["agrees"], 8) for each in runs)
    agree = statistics.mean(bit for each in runs for bit in each["agrees"])
    print(f"T_v {verify * 1e3:.0f} ms (9 rows), E∞ {tokens:.2f} (lookahead 8, agreement {agree:.3f})")
    for precision, mode in (("model", "ssd"), ("int8", "ssd+int8")):
        draft = statistics.median(each[f"T_d {precision}"] for each in runs)
        roof = min(tokens / verify, 1 / draft)
        line = f"T_d {draft * 1e3:.0f} ms ({precision}, 12 rows): roof min(E∞/T_v, 1/T_d) = {roof:.2f} tok/s"
        if by_mode.get(mode):
            rate = statistics.median(1 / each["seconds_per_token"] for each in by_mode[mode].values())
            line += f"; {mode} reaches {rate / roof:.2f} of it"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--modes", default="ar,sd3,sd4,sd5,ssd,sd5+int8,ssd+int8")
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--draft-core", type=int, default=1)
    options = parser.parse_args()
    options.run.mkdir(parents=True, exist_ok=True)
    modes = [parse_mode(text) for text in options.modes.split(",")]
    file = options.run / "records.jsonl"
    record(options, modes, file)
    report(read(file), modes)


if __name__ == "__main__":
    main()
