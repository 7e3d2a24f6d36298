"""vLLM alone, with its own speculation, and with our draft, on your GPUs: one command, one page to send.

    python -m benchmarks.vllm_page MODEL --draft SMALL_MODEL --run runs/page

The interpreter, or the one named by --python, has vLLM and this package. Tries the device first (`ssd doctor
--selftest`, in a process of its own), then starts `ssd serve --engine vllm` once for each case and turn, and
asks it at each temperature and batch size for some seconds. It ends within --minutes: what did not fit is
named on the page, and started again, it goes on. The page is DIR/page.md; without a GPU it is a CPU's.
"""

import json
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.flags import parser
from benchmarks.vllm_load import Load, Server, measured
from ssd.bench.datasets import load_prompts
from ssd.bench.folder import add_line, drop_cut_line, read_lines
from ssd.bench.statistics import in_turn

FLAGS = {
    "model:": str,
    "draft": str,
    "run": Path,
    "python": sys.executable,
    "minutes": 60.0,
    "lookahead": 4,
    "temperatures": [0.0, 0.7],
    "batches": [1, 8, 32],
    "seconds": 20.0,
    "turns": 2,
    "tensor-parallel-size": 1,
    "max-model-len": 4096,
    "max-tokens": 256,
    "num-prompts": 32,
    "datasets": ["humaneval", "alpaca", "gsm8k", "ultrafeedback"],
    "dataset-dir": None,
    "without-compilation": False,
    "no-selftest": False,
}
CASES = ("vLLM alone", "vLLM's own speculation", "SSD")
DOCTOR = ("-m", "ssd", "doctor", "--json")
_SELF_TEST_SECONDS = 600.0
_TO_END = 90.0
"""Seconds that are kept for a text that hangs, and for ending the last server."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What one case gave at one temperature and batch size, in one turn."""

    turn: int
    case: str
    temperature: float
    batch: int
    load: Load

    @property
    def key(self) -> tuple[int, str, float, int]:
        return self.turn, self.case, self.temperature, self.batch


class NoTimeError(Exception):
    """What comes next would not end within the run's minutes."""


@dataclass(frozen=True, slots=True)
class Deadline:
    at: float

    @property
    def left(self) -> float:
        return self.at - time.monotonic()


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__, FLAGS).parse_args(words)
    deadline = Deadline(time.monotonic() + 60 * options.minutes - _TO_END)
    options.run.mkdir(parents=True, exist_ok=True)
    _refuse_another_run(options)
    prompts = [
        text
        for name in options.datasets
        for text in load_prompts(name, options.dataset_dir, options.num_prompts // len(options.datasets))
    ]
    _examine(options, deadline)
    records = options.run / "records.jsonl"
    drop_cut_line(records)
    left_out = _measure(options, prompts, records, deadline)
    page = options.run / "page.md"
    page.write_text("\n".join(page_lines(options, read_lines(records, Point), left_out)) + "\n")
    print(f"\nThe page: {page}. Please send it with {records} and {options.run / 'doctor.json'}.")
    return 0


def _refuse_another_run(options: Namespace) -> None:
    said = {name: str(value) for name, value in vars(options).items() if name not in ("run", "minutes")}
    file = options.run / "settings.json"
    if file.exists() and json.loads(file.read_text()) != said:
        raise SystemExit(f"{options.run} holds a run with other settings: name another folder with --run")
    file.write_text(json.dumps(said, indent=1) + "\n")


def _examine(options: Namespace, deadline: Deadline) -> None:
    """What `ssd doctor` says, once. In other processes: what they take of a GPU is free again afterwards."""
    pair = ("--model", options.model, "--draft", options.draft)
    asked = {"doctor.json": pair} | ({} if options.no_selftest else {"selftest.json": (*pair, "--selftest")})
    for name, words in asked.items():
        file = options.run / name
        if not file.exists() or "error" in json.loads(file.read_text()):
            print(f"ssd doctor {' '.join(words)}", file=sys.stderr, flush=True)
            file.write_text(_told(options, words, min(_SELF_TEST_SECONDS, deadline.left)))


def _told(options: Namespace, words: Sequence[str], seconds: float) -> str:
    command = [options.python, *DOCTOR, *words]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return json.dumps({"error": f"it took more than {seconds:.0f} s"})
    return done.stdout or json.dumps({"error": f"it ended with code {done.returncode}"})


def _measure(options: Namespace, prompts: Sequence[str], records: Path, deadline: Deadline) -> list[str]:
    """Measures what is not in the records yet; returns what was left out, and why."""
    left_out: list[str] = []
    longest_start = 0.0
    for turn in range(options.turns):
        for case in in_turn(CASES, turn):
            done = {each.key for each in read_lines(records, Point)}
            grid = product(options.temperatures, options.batches)
            points = [each for each in grid if (turn, case, *each) not in done]
            if not points:
                continue
            name, started = f"turn {turn + 1} of {case}", time.monotonic()
            try:
                if deadline.left < longest_start + _seconds_of(options):
                    raise NoTimeError
                print(f"{name} starts", file=sys.stderr, flush=True)
                with Server(command_of(options, case), options.run / "logs", case) as server:
                    server.wait(deadline.left, for_draft=case == "SSD")
                    longest_start = max(longest_start, time.monotonic() - started)
                    for temperature, batch in points:
                        load = _load(options, server, prompts, temperature, batch, deadline)
                        point = Point(turn=turn, case=case, temperature=temperature, batch=batch, load=load)
                        add_line(records, point)
            except NoTimeError:
                left_out.append(f"{name}, in whole or in part: no time was left")
            except (OSError, RuntimeError) as error:
                left_out.append(f"{name}, in whole or in part: {error}")
    return left_out


def _load(
    options: Namespace,
    server: Server,
    prompts: Sequence[str],
    temperature: float,
    batch: int,
    deadline: Deadline,
) -> Load:
    if deadline.left < _seconds_of(options):
        raise NoTimeError
    load = measured(
        server,
        prompts,
        temperature=temperature,
        batch=batch,
        seconds=options.seconds,
        max_tokens=options.max_tokens,
    )
    print(f"  T = {temperature:g}, batch {batch}: {load.rate:.1f} tok/s", file=sys.stderr, flush=True)
    return load


def _seconds_of(options: Namespace) -> float:
    """Of one figure, with what goes before and after it."""
    return float(1.5 * options.seconds)


def command_of(options: Namespace, case: str) -> list[str]:
    """`ssd serve`, as users start it: it shares out GPUs and memory. The port is the server's to choose."""
    words = [options.python, "-m", "ssd", "serve", options.model, "--engine", "vllm"]
    words += ["--max-model-len", str(options.max_model_len), "--no-enable-prefix-caching"]
    words += ["--max-num-seqs", str(max(options.batches))]
    words += ["--tensor-parallel-size", str(options.tensor_parallel_size)]
    flags = ["--enforce-eager"] if options.without_compilation else []
    if case == "SSD":
        words += ["--draft", options.draft, "--lookahead", str(options.lookahead)]
    elif case == "vLLM's own speculation":
        named = {"method": "draft_model", "model": options.draft, "num_speculative_tokens": options.lookahead}
        flags += ["--speculative-config", json.dumps(named)]
    return [*words, "--", *flags]


def page_lines(options: Namespace, points: Sequence[Point], left_out: Sequence[str]) -> Iterator[str]:
    yield from ("# vLLM, its own speculation, and SSD inside it", "")
    yield (
        f"{options.model} with {options.draft}, {options.lookahead} drafted tokens, {options.turns} turns, "
        f"{options.seconds:g} s a figure, {options.max_tokens} tokens a text in any case, no prefix cache."
    )
    for temperature, batch in product(options.temperatures, options.batches):
        here = [each for each in points if (each.temperature, each.batch) == (temperature, batch)]
        if here:
            yield from ("", f"## T = {temperature:g}, batch {batch}", "")
            yield from _table(here)
    yield from ("", f"Texts at T = 0, batch 1: {_agreement(points)}.")
    yield from ("", "## Left out", "", *(f"- {each}" for each in left_out or ["nothing"]))
    yield from ("", "## Self-test", "", *_self_test_lines(options.run / "selftest.json"))
    yield from ("", "## Machine", "", *_machine_lines(options.run / "doctor.json"))


def _table(points: Sequence[Point]) -> Iterator[str]:
    """Medians over turns; ratios are taken within a turn."""
    yield "| case | tok/s | × vLLM alone | first token, s | tokens a verification |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    plain = {each.turn: each.load.rate for each in points if each.case == CASES[0]}
    for case in CASES:
        mine = [each for each in points if each.case == case]
        if not mine:
            continue
        ratios = [each.load.rate / plain[each.turn] for each in mine if plain.get(each.turn)]
        ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
        rate = statistics.median(each.load.rate for each in mine)
        first = statistics.median(each.load.first_token for each in mine)
        gained = statistics.median(each.load.tokens_a_verification for each in mine)
        yield f"| {case} | {rate:.1f} | {ratio} | {first:.3f} | {gained:.2f} |"


def _agreement(points: Sequence[Point]) -> str:
    """How many texts begin alike, as far as both were written."""
    texts = {each.case: each.load.texts for each in points if (each.temperature, each.batch) == (0.0, 1)}
    plain = texts.pop(CASES[0], {})
    found = []
    for case, mine in texts.items():
        both = [(plain[place], text) for place, text in mine.items() if place in plain]
        same = sum(one.startswith(other) or other.startswith(one) for one, other in both)
        found.append(f"{same} of {len(both)} of {case} are those of vLLM alone")
    return "; ".join(found) or "none"


def _self_test_lines(file: Path) -> Iterator[str]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"error": "not run"}
    if "error" in found:
        yield f"{found['error']}."
        return
    yield from (
        f"On {found['device']}:",
        "",
        "| part | what | verdict | found |",
        "| --- | --- | --- | --- |",
    )
    for line in found["lines"]:
        why = f" ({line['why']})" if line["why"] else ""
        yield f"| {line['part']} | {line['what']} | {line['verdict']} | {line['found']}{why} |"


def _machine_lines(file: Path) -> Iterator[str]:
    found = json.loads(file.read_text())
    if "error" in found:
        yield f"`ssd doctor`: {found['error']}."
        return
    versions = {each["name"]: each["version"] for each in found["packages"] if each["version"]}
    facts = {"ssd": found["ssd"], **versions, **found["machine"], **found["seats"]}
    yield from (f"- {what}: {words}" for what, words in facts.items())


if __name__ == "__main__":
    sys.exit(main())
