"""Checks kernels in Triton's interpreter, which must be enabled before Triton is imported.

    TRITON_INTERPRET=1 python -m ssd.selftest.interpreted

Writes a line of JSON for each result.
"""

import json
import sys
from dataclasses import asdict
from itertools import chain

import torch

from ssd.draft.server.kernel_checks import check_steps
from ssd.runtime.kernel_checks import AttentionCase, CaseSequence, LogitsCase, RowsCase, check_kernels
from ssd.selftest.kernels import ROUNDS

FEW = (
    AttentionCase(4, 2, 64, torch.float32, (CaseSequence(40, 5), CaseSequence(9, 1))),
    AttentionCase(4, 2, 64, torch.float16, (CaseSequence(20, 6, 10), CaseSequence(5, 2))),
    LogitsCase(3, 1500),
    LogitsCase(3, 1100, truncates=True),
    RowsCase(2, 130, 200, torch.float16),
)
"""Small cases: the interpreter is a thousand times slower than a GPU."""


def main() -> None:
    cpu = torch.device("cpu")
    for each in chain(check_kernels(cpu, FEW), check_steps(cpu, ROUNDS[:1])):
        sys.stdout.write(json.dumps(asdict(each)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
