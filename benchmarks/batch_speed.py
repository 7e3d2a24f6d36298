"""AR, SD and SSD on a batch: the same prompts at once, in turns, and whether hits wait for misses.

    python -m benchmarks.batch_speed --target MODEL --draft MODEL --prompts humaneval.jsonl \\
        --trace trace.json [--batch 8] [--turns 5] [--max-tokens 64] [--core 0] [--draft-core 1]

The trace of the last SSD turn (chrome://tracing) has a span for each verification, with how many of its
sequences had a speculation ready when the one before ended, and how long was waited before it.
"""

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.flags import parser
from benchmarks.in_turns import ratios, spread, take_turns
from ssd import LLM, SamplingParams
from ssd.engine.prompts import Prompt

FLAGS = {
    "target": str, "draft": str, "prompts": Path, "trace": Path,
    "batch": 8, "turns": 5, "max-tokens": 64, "core": 0, "draft-core": 1,
}  # fmt: skip


def engine(options: argparse.Namespace, mode: str) -> LLM:
    settings: dict[str, Any] = {} if mode == "ar" else {"draft": {"model": options.draft}}
    if mode == "ssd":
        settings["draft"]["cores"] = (options.draft_core,)
    return LLM(
        options.target,
        mode=mode,
        device="cpu",
        cores=(options.core,),
        max_num_seqs=options.batch,
        max_model_len=2048,
        show_progress=False,
        **settings,
    )


def rate(llm: LLM, prompts: list[Prompt], max_tokens: int) -> float:
    """Tokens of all sequences a second, prompts included in the time."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    started = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return len(prompts) * max_tokens / (time.perf_counter() - started)


def print_waits(trace: Path) -> None:
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event["args"] for event in events if event["name"] == "verify"]
    mixed = [step for step in steps if 0 < step["ready"] < step["sequences"]]
    waited, at_all = (sum(step["waited_ms"] > 0 for step in each) for each in (mixed, steps))
    print(
        f"{len(steps)} verifications, {len(mixed)} with rows that hit beside rows that miss, "
        f"{waited} of these waited; {at_all} waited at all"
    )


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    lines = options.prompts.read_text().splitlines()[: options.batch]
    prompts: list[Prompt] = [json.loads(line)["text"] for line in lines]
    engines = {mode: engine(options, mode) for mode in ("ar", "sd", "ssd")}
    for llm in engines.values():  # outside the clock
        rate(llm, prompts, 8)
    timelines = []

    def turn(mode: str) -> float:
        if mode == "ssd":
            timelines.append(engines[mode].record())
        return rate(engines[mode], prompts, options.max_tokens)

    rates = take_turns({mode: partial(turn, mode) for mode in engines}, options.turns, warm_up=0)
    timelines[-1].write(options.trace)
    for mode, found in rates.items():
        stats = engines[mode].stats.speculation
        print(
            f"{mode:4} {statistics.median(found):7.1f} tok/s  × AR {spread(ratios(found, rates['ar']))}  "
            f"accepted a round {stats.accepted_per_round:.2f}  hits {stats.hit_rate or 0:.2f}"
        )
    print(f"ssd over sd: {spread(ratios(rates['ssd'], rates['sd']))}")
    print_waits(options.trace)
    for llm in engines.values():
        llm.close()


if __name__ == "__main__":
    main()
