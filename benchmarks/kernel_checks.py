"""Each kernel beside its torch form, on a GPU or in Triton's interpreter: a verdict a line.

python -m benchmarks.kernel_checks --device cuda:0
TRITON_INTERPRET=1 python -m benchmarks.kernel_checks
"""

import sys

import torch

from benchmarks.flags import parser

FLAGS = {"device": "cpu"}


def main() -> int:
    device = torch.device(parser(__doc__, FLAGS).parse_args().device)
    # Here, for Triton need not be installed where the flags are read.
    from ssd.draft.forest.kernel_checks import check_steps
    from ssd.kernels.language import can_launch
    from ssd.runtime.kernel_checks import check_kernels

    if not can_launch(device):
        sys.exit(f"no kernel runs on {device}: name a GPU, or set TRITON_INTERPRET=1 for the interpreter")
    worst = 0
    for each in (*check_kernels(device), *check_steps(device)):
        worst += not each.is_sound
        verdict = "equal" if each.is_sound else "DIFFERS"
        print(f"{each.kernel:10} {verdict:8} {each.worst:.1e} of {each.bound:.0e}  {each.scene}", flush=True)
        if each.trouble:
            print(f"           {each.trouble}")
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
