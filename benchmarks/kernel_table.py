"""What each kernel takes of a GPU: registers, shared memory, spills, by its compiler's word, without one.

    python -m benchmarks.kernel_table [--models qwen3-0.6b --targets sm_90 gfx942 --record FILE.jsonl]

Every kernel is launched by its own launcher, at the shapes of real models, with a compiler for each target
behind it instead of a driver. It fails where a kernel does not compile, spills, or wants more shared memory
than the target has. `--few` compiles each kernel a few times only.
"""

import json
import sys
from dataclasses import asdict

from benchmarks.flags import parser

FLAGS = {
    "models": ["llama-3.1-70b", "llama-3.2-1b", "qwen3-32b", "qwen3-0.6b"],
    "targets": ["sm_80", "sm_90", "sm_100", "gfx942"],
    "record": None,
    "few": False,
}


def main() -> int:
    options = parser(__doc__, FLAGS).parse_args()
    # Here, for Triton need not be installed where the flags are read.
    from benchmarks.kernel_compile import lines_of

    record = open(options.record, "w") if options.record else None  # noqa: SIM115
    worst = 0
    print(f"{'target':7} {'model':14} {'case':20} {'kernel':18} {'regs':>4} {'shared':>7} {'spills':>6}")
    for target in options.targets:
        for line in lines_of(target, options.models, few=options.few):
            print(
                f"{line.target:7} {line.model:14} {line.case:20} {line.kernel:18} {line.registers:4} "
                f"{line.shared:7} {line.spills:6} {'' if line.is_sound else 'NOT SOUND'}",
                flush=True,
            )
            worst += not line.is_sound
            if record:
                record.write(json.dumps(asdict(line)) + "\n")
    print(f"{worst} of them spill or do not fit" if worst else "none spills, and all fit")
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
