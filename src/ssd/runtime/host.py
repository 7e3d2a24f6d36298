"""The machine a runner runs on: devices and number formats; its cores are in cores.py.

Knows what torch reports. Decides what `auto` means.
"""

import torch

from ssd.config import DType
from ssd.models.linear import can_pack


def resolve_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r}: use 'auto', 'cpu', 'cuda' or 'cuda:N'") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, but torch sees no CUDA device: use device='cpu'")
    return resolved


def resolve_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        has_fast_bfloat16 = device.type != "cpu" or can_pack()
        return torch.bfloat16 if has_fast_bfloat16 else torch.float32
    names = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if dtype not in names:
        raise ValueError(f"dtype={dtype!r}: use 'auto' or one of {', '.join(names)}")
    return names[dtype]
