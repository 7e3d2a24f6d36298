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
from ssd.models.int8 import fine_rounded_matmul, rounded_matmul
from ssd.models.linear import MakeMatMul, MatMul, packed_matmul

FLAGS = {"outputs": 8960, "inputs": 1536}

ROWS = (1, 5, 9, 16, 128)
_TOO_SLOW = 1.0
_GROUP = 32
"""Weights that share a scale in files of 4 bits."""


def plain(weight: Tensor, bias: Tensor | None) -> MatMul:
    return lambda x: F.linear(x, weight, bias)


def torch_int4(weight: Tensor, bias: Tensor | None) -> MatMul:
    """torch's 4 bits with a scale and a zero for each group; a time, since the weights are made up."""
    num_outputs, num_inputs = weight.shape
    values = torch.randint(0, 16, (num_outputs, num_inputs), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
    scales = torch.rand(num_inputs // _GROUP, num_outputs, 2).to(weight.dtype)
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, _GROUP, scales)


FORMS: dict[str, tuple[torch.dtype, MakeMatMul]] = {
    "float32": (torch.float32, plain),
    "float32 packed": (torch.float32, packed_matmul),
    "bfloat16": (torch.bfloat16, plain),
    "bfloat16 packed": (torch.bfloat16, packed_matmul),
    "int8, inputs of 8 bits": (torch.bfloat16, rounded_matmul),
    "int8, of 16 bits": (torch.bfloat16, fine_rounded_matmul),
    "int4 of torch": (torch.bfloat16, torch_int4),
}


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    print(arithmetic())
    print(f"{'ms by rows':24}" + "".join(f"{rows:8}" for rows in ROWS))
    weight = torch.randn(options.outputs, options.inputs)
    for name, (dtype, make) in FORMS.items():
        try:
            multiply = make(weight.to(dtype), None)
            times = [measure(multiply, torch.randn(rows, options.inputs).to(dtype)) for rows in ROWS]
        except (RuntimeError, AssertionError, TimeoutError) as error:
            print(f"{name:24} none: {str(error).splitlines()[0]}")
            continue
        print(f"{name:24}" + "".join(f"{1e3 * each:8.2f}" for each in times), flush=True)


def measure(multiply: MatMul, x: Tensor) -> float:
    if seconds(lambda: multiply(x)) > _TOO_SLOW:
        raise TimeoutError(f"{len(x)} rows take over {_TOO_SLOW:g} s")
    return best(lambda: multiply(x), within=0.4)


if __name__ == "__main__":
    main()
