"""Plans which device each model goes to and whether it fits, from headers and settings, before loading.

Counts weights, and KV caches as the engine would plan them; a margin stays free for what a step needs.
Does not know which devices exist or how much memory they have free: callers pass that in.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ssd.config import EngineConfig, RunnerConfig
from ssd.engine.drafting import with_own_device
from ssd.processes.host_memory import HostMemory, gib
from ssd.runtime.host import draft_device, gpu_of
from ssd.runtime.memory_needs import CPU, check_host_memory, memory_needs

_USABLE = 0.9
"""The share of free memory that weights and KV may take: steps and the driver need the rest."""


@dataclass(frozen=True, slots=True)
class ModelPlacement:
    """One model on its device, in bytes."""

    who: str
    device: str
    weights: int
    kv: int
    free: int
    """Free on the device before any model is loaded."""
    taken: int
    """By all models of the plan on this device."""

    @property
    def fits(self) -> bool:
        return self.taken <= _USABLE * self.free

    @property
    def verdict(self) -> str:
        spare = _USABLE * self.free - self.taken
        if self.fits:
            return f"fits, {gib(spare)} to spare"
        return (
            f"does not fit: {gib(self.taken)} wanted, {gib(_USABLE * self.free)} of {gib(self.free)} usable: "
            "choose another device, or a smaller --kv-cache-bytes"
        )

    @property
    def words(self) -> str:
        return f"{self.device}: {gib(self.weights)} of weights, {gib(self.kv)} of KV; {self.verdict}"


@dataclass(frozen=True, slots=True)
class _ModelOnDevice:
    who: str
    device: str
    runner: RunnerConfig


def place_models(config: EngineConfig, free: Mapping[str, int]) -> list[ModelPlacement]:
    """The target's placement, then the draft's. `free`: free bytes by device; GPUs in their order."""
    gpus = _gpus(free)
    config = with_own_device(config, gpus)
    target = _ModelOnDevice("target", gpu_of(config.device, gpus) or CPU, config.runner)
    return _placed([target, *_drafts(config, gpus)], free)


def refuse_a_draft_without_room(config: EngineConfig, free: Mapping[str, int]) -> None:
    """ValueError if a GPU has too little free memory for a draft beside a target that is loaded."""
    on_gpus = [each for each in _drafts(config, _gpus(free)) if each.device != CPU]
    for placement in _placed(on_gpus, free):
        if not placement.fits:
            raise ValueError(
                f"the draft needs {gib(placement.taken)} of {placement.device}, and {gib(placement.free)} "
                "are free there: the target's KV cache takes the rest. Start with the draft, or with a "
                "smaller kv_cache_bytes; or name another draft.device"
            )


def refuse_without_memory(
    config: EngineConfig, memory: HostMemory, gpus: list[str], *, target_is_loaded: bool = False
) -> None:
    """ValueError that says what to change, if host memory is too small for the models still to be loaded."""
    target = _ModelOnDevice("target", gpu_of(config.device, gpus) or CPU, config.runner)
    models = [*([] if target_is_loaded else [target]), *_drafts(config, gpus)]
    on_host = [each for each in models if each.device == CPU]
    if on_host:
        check_host_memory([memory_needs(each.who, each.runner) for each in on_host], memory)


def _gpus(free: Mapping[str, int]) -> list[str]:
    return [device for device in free if device != CPU]


def _drafts(config: EngineConfig, gpus: list[str]) -> list[_ModelOnDevice]:
    """The draft that this machine runs, if it runs one."""
    if (draft := config.own_draft) is None:
        return []
    target = gpu_of(config.device, gpus)
    device = target or CPU
    if config.mode != "sd":
        device = draft_device(draft.device, gpus, target=target)
    return [_ModelOnDevice("draft", device, config.draft_runner)]


def _placed(models: list[_ModelOnDevice], free: Mapping[str, int]) -> list[ModelPlacement]:
    """In loading order: a later model plans with the memory that earlier ones leave."""
    left = {device: int(_USABLE * size) for device, size in free.items()}
    found = []
    for each in models:
        needs = memory_needs(each.who, each.runner, each.device, left=left[each.device])
        left[each.device] -= needs.weights + needs.kv
        found.append((each, needs))
    return [
        ModelPlacement(
            each.who,
            each.device,
            needs.weights,
            needs.kv,
            free[each.device],
            int(_USABLE * free[each.device]) - left[each.device],
        )
        for each, needs in found
    ]
