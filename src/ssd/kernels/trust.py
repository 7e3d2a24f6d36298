"""Decides whether to use a kernel or its torch form on a device.

A kernel is used if it can be launched and has not failed the comparison with torch at startup
(`runtime/kernel_checks.py`).
"""

from typing import Literal

import torch

from ssd.kernels.language import can_launch

Kernel = Literal[
    "attention",
    "norm",
    "silu",
    "move",
    "decide",
    "floors",
    "children",
    "select",
    "runs",
    "edits",
    "attach",
    "news",
    "apply",
]

_failed: set[tuple[str, Kernel]] = set()
"""By type of device: a kernel that fails on one GPU is not used on any."""


def may_run(kernel: Kernel, device: torch.device) -> bool:
    return can_launch(device) and (device.type, kernel) not in _failed


def leave_to_torch(kernel: Kernel, device: torch.device) -> None:
    """Stops using the kernel on this type of device, in this process."""
    _failed.add((device.type, kernel))
