"""Which number format decodes fastest here, mode by mode: each format and mode in turns on the same prompts.

    python -m benchmarks.dtypes --target MODEL --draft SMALL_MODEL --prompts FILE.jsonl

Shows what `auto` chooses beside what would have been fastest. To see another CPU's choice, hide instructions:
ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx512. Both targets are loaded: it needs the memory.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from ssd.bench.cases import Case, parse_case
from ssd.bench.engines import CaseEngines
from ssd.config import DraftConfig, DType, EngineConfig
from ssd.runtime.host import resolve_device, resolve_dtype

FORMATS: tuple[DType, ...] = ("bfloat16", "float32")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--cases", default="ar,sd4+int8,ssd+int8")
    parser.add_argument("--num-prompts", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    cases = [parse_case(text) for text in options.cases.split(",")]
    lines = options.prompts.read_text().splitlines()[: options.num_prompts]
    prompts = [json.loads(line)["text"] for line in lines]
    engines = {each: engines_of(options, each, cases) for each in FORMATS}
    for each in engines.values():
        each.warm_up(cases, prompts[0])
    show(run(engines, cases, prompts, options.max_tokens), cases)
    for each in engines.values():
        each.close()


def engines_of(options: argparse.Namespace, dtype: DType, cases: list[Case]) -> CaseEngines:
    config = EngineConfig(model=options.target, device="cpu", dtype=dtype, cores=(0,))
    return CaseEngines(config, DraftConfig(model=options.draft, cores=(1,)), cases)


def run(
    engines: dict[DType, CaseEngines], cases: list[Case], prompts: list[str], max_tokens: int
) -> dict[tuple[DType, Case], list[float]]:
    """Tokens a second of each format and case, prompt by prompt."""
    rates: dict[tuple[DType, Case], list[float]] = defaultdict(list)
    for place, prompt in enumerate(prompts):
        for case in cases:
            for dtype in FORMATS[:: 1 if place % 2 else -1]:
                (record,) = engines[dtype].run(case, [prompt], max_tokens=max_tokens, seed=place)
                rates[dtype, case].append(len(record.tokens) / record.seconds)
                print(f"{dtype:9} {case.name:10} {rates[dtype, case][-1]:6.2f} tok/s", flush=True)
    return rates


def show(rates: dict[tuple[DType, Case], list[float]], cases: list[Case]) -> None:
    auto = str(resolve_dtype("auto", resolve_device("cpu"))).removeprefix("torch.")
    plain = rates[auto, parse_case("ar")] if parse_case("ar") in cases else None  # type: ignore[index]
    for case in cases:
        medians = {dtype: statistics.median(rates[dtype, case]) for dtype in FORMATS}
        best = max(medians, key=lambda dtype: medians[dtype])
        line = f"{case.name:10} " + "  ".join(f"{dtype} {medians[dtype]:5.2f}" for dtype in FORMATS)
        line += f"  auto ({auto}) {medians[auto] / medians[best]:.2f} of the best"  # type: ignore[index]
        if plain:
            over = [mine / theirs for mine, theirs in zip(rates[auto, case], plain, strict=True)]  # type: ignore[index]
            line += f"  × ar {statistics.median(over):.2f} ({min(over):.2f}–{max(over):.2f})"
        print(line)


if __name__ == "__main__":
    main()
