"""What a draft's forward costs with int8 weights and a head of frequent tokens, on one core.

    python -m benchmarks.draft_speed --model DRAFT [--core 0] [--rounds 30] [--head 32768]

Shared machines drift by a factor of two within seconds, so the variants take turns forward
by forward; ratios to the first variant are taken within a round.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ssd.config import RunnerConfig
from ssd.models.checkpoint import open_checkpoint
from ssd.models.head_tokens import frequent_tokens
from ssd.runtime.cores import pin_to_cores
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import RunnerRow

CONTEXT, BLOCK, MAX_LEN = 256, 16, 512
ROW_COUNTS = (1, 8, 12, 16)


def load_variants(model: str, head: int) -> dict[str, LoadedModel]:
    config = RunnerConfig(
        model=model, device="cpu", dtype="bfloat16", max_model_len=MAX_LEN, num_blocks=MAX_LEN // BLOCK
    )
    rounded = replace(config, precision="int8")
    checkpoint = open_checkpoint(model)
    tokens = frequent_tokens(checkpoint.tokenizer(), checkpoint.config.vocab_size, head)
    return {
        "bf16": load_model(config),
        "int8": load_model(rounded),
        f"int8, head {head}": load_model(rounded, head_tokens=tokens),
        f"bf16, head {head}": load_model(config, head_tokens=tokens),
    }


def seconds(loaded: LoadedModel, count: int) -> float:
    row = RunnerRow([11] * count, CONTEXT, list(range(MAX_LEN // BLOCK)), count, generated=True)
    started = time.perf_counter()
    loaded.runner.forward([row])
    return time.perf_counter() - started


def measure(variants: dict[str, LoadedModel], rounds: int) -> dict[tuple[int, str], list[float]]:
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for count in ROW_COUNTS:
            for name, loaded in variants.items():
                elapsed = seconds(loaded, count)
                if number:  # The first round warms up.
                    found[count, name].append(elapsed)
    return found


def line(count: int, name: str, times: Sequence[float], base: Sequence[float]) -> str:
    low, middle, high = (1e3 * quartile for quartile in statistics.quantiles(times, n=4))
    ratio = statistics.median(time / other for time, other in zip(times, base, strict=True))
    best = 1e3 * min(times)
    return f"| {count} | {name} | {middle:.1f} | {best:.1f} | {low:.1f} – {high:.1f} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="the draft: a folder or a GGUF file")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--head", type=int, default=32_768, help="tokens of the restricted head")
    options = parser.parse_args()
    pin_to_cores([options.core])
    variants = load_variants(options.model, options.head)
    found = measure(variants, options.rounds)
    first = next(iter(variants))
    print("| rows | variant | median ms | best ms | quartiles | beside bf16 |\n|---|---|---|---|---|---|")
    for (count, name), times in found.items():
        print(line(count, name, times, found[count, first]))


if __name__ == "__main__":
    main()
