"""What a linear layer costs by rows in each number format, packed and not: the table that `auto` follows.

    python -m benchmarks.linears [--outputs 8960 --inputs 1536]

To see other CPUs, hide instructions from oneDNN and torch, as far as this one has them:
ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx512 (or AVX512_CORE_BF16 …, or AVX2 and avx2).
Best of many turns, one core. A form that the CPU emulates may take minutes: it is left out where its first
product takes over a second.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.models import linear
from ssd.models.arithmetic import arithmetic

ROWS = (1, 5, 9, 16, 128)
_SECONDS = 0.4
_TOO_SLOW = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", type=int, default=8960)
    parser.add_argument("--inputs", type=int, default=1536)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(arithmetic())
    print(f"{'ms by rows':15}" + "".join(f"{rows:8}" for rows in ROWS))
    weight = torch.randn(options.outputs, options.inputs)
    for name, dtype, make in forms():
        try:
            multiply = make(weight.to(dtype))
            times = [best(multiply, torch.randn(rows, options.inputs).to(dtype)) for rows in ROWS]
        except (RuntimeError, AssertionError, TimeoutError) as error:
            print(f"{name:15} none: {str(error).splitlines()[0]}")
            continue
        print(f"{name:15}" + "".join(f"{1e3 * each:8.2f}" for each in times), flush=True)


def forms() -> list[tuple[str, torch.dtype, Callable[[Tensor], linear.MatMul]]]:
    def plain(weight: Tensor) -> linear.MatMul:
        return lambda x: F.linear(x, weight)

    def int8(weight: Tensor) -> linear.MatMul:
        return linear.int8_matmul(weight, None)

    return [
        ("float32", torch.float32, plain),
        ("float32 packed", torch.float32, lambda weight: linear.packed_matmul(weight, None)),
        ("bfloat16", torch.bfloat16, plain),
        ("bfloat16 packed", torch.bfloat16, lambda weight: linear.packed_matmul(weight, None)),
        ("int8", torch.float32, int8),
    ]


def best(multiply: linear.MatMul, x: Tensor) -> float:
    started = time.perf_counter()
    multiply(x)
    if time.perf_counter() - started > _TOO_SLOW:
        raise TimeoutError(f"{len(x)} rows take over {_TOO_SLOW:g} s")
    fastest, ends = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < ends:
        started = time.perf_counter()
        multiply(x)
        fastest = min(fastest, time.perf_counter() - started)
    return fastest


if __name__ == "__main__":
    main()
