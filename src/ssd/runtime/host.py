"""The machine a runner runs on: devices and number formats; its cores are in cores.py.

Knows what torch reports. Decides what `auto` means.
"""

import torch

from ssd.config import DType
from ssd.models import arithmetic


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


def gpus_here() -> list[str]:
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def free_on_gpus() -> dict[str, int]:
    """Free bytes of each GPU."""
    torch.cuda.empty_cache()
    return {gpu: int(torch.cuda.mem_get_info(torch.device(gpu))[0]) for gpu in gpus_here()}


def resolve_dtype(dtype: DType, device: torch.device, declared: str | None = None) -> torch.dtype:
    """Resolves `auto` for this device and the number format that the checkpoint declares (None: none)."""
    names = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if dtype == "auto":
        return _auto_on_gpu(declared) if device.type == "cuda" else _auto_on_cpu(declared)
    if dtype not in names:
        raise ValueError(f"dtype={dtype!r}: use 'auto' or one of {', '.join(names)}")
    return names[dtype]


def _auto_on_cpu(declared: str | None) -> torch.dtype:
    """The same format in every mode, so that the mode changes no token.

    (A single row would be faster in emulated bfloat16.) Float16 checkpoints run in float32: CPUs compute
    float16 slowly, and bfloat16 would drop three bits.
    """
    return torch.bfloat16 if arithmetic.arithmetic().bfloat16 and declared != "float16" else torch.float32


def _auto_on_gpu(declared: str | None) -> torch.dtype:
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bfloat16 and declared != "float16" else torch.float16
