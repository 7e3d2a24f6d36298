"""Which kernels may run where: those that can be launched, but for those that failed there against torch.

Code that has a kernel and its torch form asks here which of the two to take. The check at startup
(`runtime/kernel_checks.py`) finds those that fail.
"""

from typing import Literal

import torch

from ssd.kernels.language import can_launch

Kernel = Literal["attention", "move", "decide", "children", "select", "attach", "apply"]

_failed: set[tuple[str, Kernel]] = set()
"""By kind of device: what fails on one of a machine's GPUs is used on none."""


def may_run(kernel: Kernel, device: torch.device) -> bool:
    return can_launch(device) and (device.type, kernel) not in _failed


def leave_to_torch(kernel: Kernel, device: torch.device) -> None:
    """From here on, in this process."""
    _failed.add((device.type, kernel))
