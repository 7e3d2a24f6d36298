"""What a draft's forward costs with int8 weights and a head of frequent tokens, on one core.

    python -m benchmarks.draft_speed --model DRAFT [--core 0] [--rounds 30] [--head 32768]

The variants take turns forward by forward; ratios are to plain bfloat16, within a round.
"""

from dataclasses import replace
from functools import partial

from benchmarks.flags import parser
from benchmarks.in_turns import show_ratios, show_times, take_turns
from ssd.bench.bare_forward import bare_forward
from ssd.config import RunnerConfig
from ssd.runtime.cores import pin_to_cores
from ssd.runtime.loading import LoadedModel, load_model

FLAGS = {"model": str, "core": 0, "rounds": 30, "head": 32768}

MAX_LEN, ROW_COUNTS = 512, (1, 8, 12, 16)


def load_variants(model: str, head: int) -> dict[str, LoadedModel]:
    config = RunnerConfig(
        model=model, device="cpu", dtype="bfloat16", max_model_len=MAX_LEN, num_blocks=MAX_LEN // 16
    )
    rounded = replace(config, precision="int8")
    return {
        "bf16": load_model(config),
        "int8": load_model(rounded),
        f"int8, head {head}": load_model(replace(rounded, head=head)),
        f"bf16, head {head}": load_model(replace(config, head=head)),
    }


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    pin_to_cores([options.core])
    variants = load_variants(options.model, options.head)
    forwards = {
        f"{count} rows, {name}": partial(bare_forward, loaded, count)
        for count in ROW_COUNTS
        for name, loaded in variants.items()
    }
    found = take_turns(forwards, options.rounds)
    show_times(found)
    rounded = [name for name in found if not name.endswith(", bf16")]
    show_ratios(found, {name: (name, f"{name.split(',')[0]}, bf16") for name in rounded})


if __name__ == "__main__":
    main()
