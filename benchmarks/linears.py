"""What a linear layer costs by rows in each number format, packed and not: the table that `auto` follows.

    python -m benchmarks.linears [--outputs 8960 --inputs 1536]

To see other CPUs, hide instructions from oneDNN and torch, as far as this one has them:
ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx512 (or AVX512_CORE_BF16 …, or AVX2 and avx2).
Best of many turns, one core. A form that the CPU emulates may take minutes: it is left out where its first
product takes over a second.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.flags import parser
from benchmarks.in_turns import best, seconds
from ssd.models.arithmetic import arithmetic
from ssd.models.linear import MakeMatMul, MatMul, int8_matmul, packed_matmul

FLAGS = {"outputs": 8960, "inputs": 1536}

ROWS = (1, 5, 9, 16, 128)
_TOO_SLOW = 1.0


def plain(weight: Tensor, bias: Tensor | None) -> MatMul:
    return lambda x: F.linear(x, weight, bias)


FORMS: dict[str, tuple[torch.dtype, MakeMatMul]] = {
    "float32": (torch.float32, plain),
    "float32 packed": (torch.float32, packed_matmul),
    "bfloat16": (torch.bfloat16, plain),
    "bfloat16 packed": (torch.bfloat16, packed_matmul),
    "int8": (torch.float32, int8_matmul),
}


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    print(arithmetic())
    print(f"{'ms by rows':15}" + "".join(f"{rows:8}" for rows in ROWS))
    weight = torch.randn(options.outputs, options.inputs)
    for name, (dtype, make) in FORMS.items():
        try:
            multiply = make(weight.to(dtype), None)
            times = [measure(multiply, torch.randn(rows, options.inputs).to(dtype)) for rows in ROWS]
        except (RuntimeError, AssertionError, TimeoutError) as error:
            print(f"{name:15} none: {str(error).splitlines()[0]}")
            continue
        print(f"{name:15}" + "".join(f"{1e3 * each:8.2f}" for each in times), flush=True)


def measure(multiply: MatMul, x: Tensor) -> float:
    if seconds(lambda: multiply(x)) > _TOO_SLOW:
        raise TimeoutError(f"{len(x)} rows take over {_TOO_SLOW:g} s")
    return best(lambda: multiply(x), within=0.4)


if __name__ == "__main__":
    main()
