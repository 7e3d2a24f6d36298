"""How much memory a model will take: weights and KV cache, from headers and settings, before it is loaded.

What a step needs beside them is not counted here. Knows number formats and the shape of a KV pool.
"""

from dataclasses import dataclass

import torch

from ssd.config import RunnerConfig
from ssd.models.checkpoint import open_checkpoint
from ssd.models.config import ModelConfig
from ssd.models.linear import resolve_precision
from ssd.processes.host_memory import HostMemory, gib
from ssd.runtime.host import resolve_dtype
from ssd.runtime.kv_planner import KVPlanner, pool_bytes

CPU = "cpu"
_PROCESS = 1 << 29
"""What a process with torch takes before any model is in it."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes of one model."""

    who: str
    weights: int
    kv: int
    least_kv: int = 0
    """With less KV memory it cannot run."""


def memory_needs(who: str, runner: RunnerConfig, device: str = CPU, *, left: int = 0) -> MemoryNeeds:
    """`left`: free bytes of a GPU before the weights are there, which KV fills unless a size was given."""
    model = open_checkpoint(runner.model).config
    dtype = _dtype(runner, device, model.dtype)
    weights = _held(model) * _itemsize(runner, device, dtype)
    planner = KVPlanner(runner, model, dtype, torch.device(CPU))
    least = pool_bytes(planner.one_block)
    if runner.kv_cache_bytes is not None:
        return MemoryNeeds(who, weights, runner.kv_cache_bytes, least)
    if device == CPU:
        return MemoryNeeds(who, weights, pool_bytes(planner.on_host()), least)
    share = int((left - weights) * runner.kv_share)
    return MemoryNeeds(who, weights, pool_bytes(planner.shape(max(share, least))), least)


def check_host_memory(needs: list[MemoryNeeds], memory: HostMemory) -> None:
    """ValueError with what to change, if models on the CPU would not fit into the memory that is free."""
    fixed = sum(each.weights + _PROCESS for each in needs)
    wanted = fixed + sum(each.kv for each in needs)
    if wanted <= memory.available:
        return
    parts = ", ".join(
        f"{each.who}: {gib(each.weights)} of weights and {gib(each.kv)} of KV cache" for each in needs
    )
    said = (
        f"out of memory before anything is loaded: {gib(wanted)} are needed, with processes ({parts}); "
        f"there are {memory}"
    )
    each_kv = (memory.available - fixed) // len(needs)
    if each_kv >= max(each.least_kv for each in needs):
        raise ValueError(f"{said}: use --kv-cache-bytes {each_kv >> 20 << 20}, or raise the limit")
    raise ValueError(f"{said}: use a smaller model, free memory, or raise the limit of the container")


def _held(model: ModelConfig) -> int:
    """Weights in memory: a tied head is the embedding."""
    return model.num_parameters + (0 if model.tie_embeddings else model.vocab_size * model.hidden_size)


def _dtype(runner: RunnerConfig, device: str, declared: str | None) -> torch.dtype:
    """On a GPU one of two bytes, unless four were asked for: which, that GPU knows."""
    if device != CPU:
        return torch.float32 if runner.dtype == "float32" else torch.bfloat16
    return resolve_dtype(runner.dtype, torch.device(CPU), declared)


def _itemsize(runner: RunnerConfig, device: str, dtype: torch.dtype) -> int:
    if device != CPU:
        return dtype.itemsize
    is_int8 = resolve_precision(runner.precision, torch.device(CPU), dtype) == "int8"
    return 1 if is_int8 else dtype.itemsize
