"""Kernels in Triton's interpreter, in a process of its own: it has to be chosen before Triton is imported.

    TRITON_INTERPRET=1 python -m ssd.selftest.interpreted

Writes a line of JSON for each finding.
"""

import json
import sys
from dataclasses import asdict
from itertools import chain

import torch

from ssd.draft.server.kernel_checks import check_steps
from ssd.runtime.kernel_checks import Part, Scene, Words, check_kernels
from ssd.selftest.kernels import ROUNDS

FEW = (
    Scene(4, 2, 64, torch.float32, (Part(40, 5), Part(9, 1))),
    Scene(4, 2, 64, torch.float16, (Part(20, 6, 10), Part(5, 2))),
    Words(3, 1500),
    Words(3, 1100, truncates=True),
)
"""A small form: the interpreter is a thousand times slower than a GPU."""


def main() -> None:
    cpu = torch.device("cpu")
    for each in chain(check_kernels(cpu, FEW), check_steps(cpu, ROUNDS[:1])):
        sys.stdout.write(json.dumps(asdict(each)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
