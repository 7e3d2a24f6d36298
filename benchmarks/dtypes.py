"""Which number format decodes fastest here, mode by mode: each format and mode in turns on the same prompts.

    python -m benchmarks.dtypes --target MODEL --draft SMALL_MODEL --prompts FILE.jsonl

Shows what `auto` chooses beside what would have been fastest. To see another CPU's choice, hide instructions:
ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx512. Both targets are loaded: it needs the memory.
"""

import json
import statistics
from contextlib import ExitStack
from pathlib import Path

from benchmarks.flags import parser
from benchmarks.in_turns import Measure, ratios, spread, take_turns
from ssd.bench.cases import Case, parse_case
from ssd.bench.engines import CaseEngines
from ssd.config import DraftConfig, DType, EngineConfig
from ssd.runtime.host import resolve_device, resolve_dtype

FLAGS = {
    "target": str, "draft": str, "prompts": Path,
    "cases": "ar,sd4+int8,ssd+int8", "num-prompts": 3, "max-tokens": 48,
}  # fmt: skip

FORMATS: tuple[DType, ...] = ("bfloat16", "float32")


def rates_of(engines: CaseEngines, case: Case, prompts: list[str], max_tokens: int) -> Measure:
    """A call writes after the next prompt, and says how many tokens a second."""
    places = iter(enumerate(prompts))

    def write() -> float:
        place, prompt = next(places)
        (record,) = engines.run(case, [prompt], max_tokens=max_tokens, seed=place)
        return len(record.tokens) / record.seconds

    return write


def show(rates: dict[str, list[float]], cases: list[Case]) -> None:
    auto = str(resolve_dtype("auto", resolve_device("cpu"))).removeprefix("torch.")
    for case in cases:
        medians = {dtype: statistics.median(rates[f"{dtype} {case.name}"]) for dtype in FORMATS}
        line = f"{case.name:10} " + "  ".join(f"{dtype} {value:5.2f}" for dtype, value in medians.items())
        line += f"  auto ({auto}) {medians[auto] / max(medians.values()):.2f} of the best"  # type: ignore[index]
        if f"{auto} ar" in rates:
            line += f"  × ar {spread(ratios(rates[f'{auto} {case.name}'], rates[f'{auto} ar']))}"
        print(line)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    cases = [parse_case(text) for text in options.cases.split(",")]
    lines = options.prompts.read_text().splitlines()[: options.num_prompts]
    prompts = [json.loads(line)["text"] for line in lines]
    measures: dict[str, Measure] = {}
    with ExitStack() as stack:
        for dtype in FORMATS:
            config = EngineConfig(model=options.target, device="cpu", dtype=dtype, cores=(0,))
            draft = DraftConfig(model=options.draft, cores=(1,))
            engines = stack.enter_context(CaseEngines(config, draft, cases))
            engines.warm_up(cases, prompts[0])
            for case in cases:
                measures[f"{dtype} {case.name}"] = rates_of(engines, case, prompts, options.max_tokens)
        show(take_turns(measures, len(prompts), warm_up=0), cases)


if __name__ == "__main__":
    main()
