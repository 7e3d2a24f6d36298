"""Estimates a model's memory, weights and KV cache, from headers and settings, before it is loaded.

Does not count the working memory of steps. Knows number formats and the shape of a KV pool.
"""

from dataclasses import dataclass

import torch

from ssd.config import RunnerConfig
from ssd.models.checkpoint import open_checkpoint
from ssd.models.config import ModelConfig
from ssd.processes.host_memory import HostMemory, gib
from ssd.runtime.host import resolve_dtype, runner_precision
from ssd.runtime.kv_planner import KVPlanner, pool_bytes

CPU = "cpu"
_PROCESS = 1 << 29
"""Bytes of a process with torch but without a model."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes of one model."""

    who: str
    weights: int
    kv: int
    least_kv: int = 0
    """Minimum of KV memory to run."""


def memory_needs(who: str, runner: RunnerConfig, device: str = CPU, *, left: int = 0) -> MemoryNeeds:
    """`left`: free bytes of a GPU before loading; KV fills them unless the settings give its size."""
    model = open_checkpoint(runner.model).config
    dtype = _dtype(runner, device, model.dtype)
    weights = _num_weights(model, device) * _itemsize(runner, device, dtype)
    planner = KVPlanner(runner, model, dtype, torch.device(CPU))
    least = pool_bytes(planner.one_block)
    if runner.kv_cache_bytes is not None:
        return MemoryNeeds(who, weights, runner.kv_cache_bytes, least)
    if device == CPU:
        return MemoryNeeds(who, weights, pool_bytes(planner.on_host()), least)
    share = int((left - weights) * runner.kv_share)
    return MemoryNeeds(who, weights, pool_bytes(planner.shape(max(share, least))), least)


def check_host_memory(needs: list[MemoryNeeds], memory: HostMemory) -> None:
    """ValueError with a remedy if models on the CPU do not fit into the available memory."""
    fixed = sum(each.weights + _PROCESS for each in needs)
    wanted = fixed + sum(each.kv for each in needs)
    if wanted <= memory.available:
        return
    parts = ", ".join(
        f"{each.who}: {gib(each.weights)} of weights and {gib(each.kv)} of KV cache" for each in needs
    )
    problem = (
        f"out of memory before anything is loaded: {gib(wanted)} are needed, with processes ({parts}); "
        f"there are {memory}"
    )
    each_kv = (memory.available - fixed) // len(needs)
    if each_kv >= max(each.least_kv for each in needs):
        raise ValueError(f"{problem}: use --kv-cache-bytes {each_kv >> 20 << 20}, or raise the limit")
    raise ValueError(f"{problem}: use a smaller model, free memory, or raise the limit of the container")


def _num_weights(model: ModelConfig, device: str) -> int:
    """Number of weights in memory. Only a GPU holds a tied head once: on CPUs the packed head is a copy."""
    is_shared = model.tie_embeddings and device != CPU
    return model.num_parameters + (0 if is_shared else model.vocab_size * model.hidden_size)


def _dtype(runner: RunnerConfig, device: str, declared: str | None) -> torch.dtype:
    """On a GPU a format of two bytes, unless float32 is set: which of the two does not change the size."""
    if device != CPU:
        return torch.float32 if runner.dtype == "float32" else torch.bfloat16
    return resolve_dtype(runner.dtype, torch.device(CPU), declared)


def _itemsize(runner: RunnerConfig, device: str, dtype: torch.dtype) -> int:
    if device != CPU:
        return dtype.itemsize
    return 1 if runner_precision(runner, torch.device(CPU), dtype) == "int8" else dtype.itemsize
