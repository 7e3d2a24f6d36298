"""The machine: resolves `auto` devices and number formats, and checks settings. Its cores are in cores.py.

Knows torch's devices and settings. Imports little more than torch, so that settings are refused before
anything is downloaded or loaded.
"""

from collections.abc import Sequence

import torch

from ssd.config import DType, EngineConfig, Precision, RunnerConfig
from ssd.models import arithmetic
from ssd.models.linear import resolve_precision, resolve_target_precision


def check_machine(config: EngineConfig) -> None:
    """ValueError with a remedy if this machine does not support the settings."""
    for each in (config.runner, *([] if config.own_draft is None else [config.draft_runner])):
        device = resolve_device(each.device)
        runner_precision(each, device, resolve_dtype(each.dtype, device))


def runner_precision(runner: RunnerConfig, device: torch.device, dtype: torch.dtype) -> Precision:
    """Resolves the precision of a model; ValueError if the device does not support it."""
    resolve = resolve_precision if runner.is_draft else resolve_target_precision
    return resolve(runner.precision, device, dtype)


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


def gpu_of(device: str, gpus: Sequence[str]) -> str | None:
    """The full name of the GPU that a setting means; None: a CPU."""
    if device == "cpu" or (device == "auto" and not gpus):
        return None
    named = "cuda:0" if device in ("auto", "cuda") else device
    if named not in gpus:
        there = f"there are {', '.join(gpus)}" if gpus else "torch sees no GPU"
        raise ValueError(f"device={device!r}, but {there}: name one of these, or 'cpu'")
    return named


def draft_device(asked: str, gpus: Sequence[str], *, target: str | None = None) -> str:
    """The draft's device; `target` is the target's GPU, if it has one.

    `auto` means the last GPU that the target does not use, or the target's if there is no other.
    """
    if asked not in ("auto", "cuda") or not gpus:
        return gpu_of(asked, gpus) or "cpu"
    others = [gpu for gpu in gpus if gpu != target]
    return (others or gpus)[-1]


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
