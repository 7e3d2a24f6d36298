"""Who would sit where, and whether it fits: from headers and settings, before anything is loaded.

Weights count, and KV caches as the engine would plan them; what a step needs beside them is left as room.
Which devices there are, and what they have free, comes in.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ssd.config import EngineConfig, RunnerConfig
from ssd.engine.drafting import with_own_device
from ssd.processes.host_memory import HostMemory, gib
from ssd.runtime.needs import CPU, needs_of, refuse_what_memory_lacks
from ssd.runtime.seats import draft_device, gpu_of

_ROOM = 0.9
"""Of what is free, for weights and KV: a step takes some, and so does a driver."""


@dataclass(frozen=True, slots=True)
class Seat:
    who: str
    device: str
    weights: int
    kv: int
    room: int
    """Bytes that are free there, before anybody sits down."""
    taken: int
    """By all who would sit there."""

    @property
    def fits(self) -> bool:
        return self.taken <= _ROOM * self.room

    @property
    def verdict(self) -> str:
        spare = _ROOM * self.room - self.taken
        if self.fits:
            return f"fits, {gib(spare)} to spare"
        return (
            f"does not fit: {gib(self.taken)} wanted, {gib(_ROOM * self.room)} of {gib(self.room)} to be "
            "had: another device, or a smaller --kv-cache-bytes"
        )

    @property
    def words(self) -> str:
        return f"{self.device}: {gib(self.weights)} of weights, {gib(self.kv)} of KV; {self.verdict}"


@dataclass(frozen=True, slots=True)
class _Sitter:
    who: str
    device: str
    runner: RunnerConfig


def seating(config: EngineConfig, rooms: Mapping[str, int]) -> list[Seat]:
    """`rooms`: free bytes of each device, by its name; GPUs in their order."""
    gpus = _gpus(rooms)
    config = with_own_device(config, gpus)
    target = _Sitter("target", gpu_of(config.device, gpus) or CPU, config.runner)
    return _seated([target, *_drafts(config, gpus)], rooms)


def refuse_a_draft_without_room(config: EngineConfig, rooms: Mapping[str, int]) -> None:
    """ValueError if a draft beside a target that is loaded would find too little of a GPU's memory."""
    on_gpus = [each for each in _drafts(config, _gpus(rooms)) if each.device != CPU]
    for seat in _seated(on_gpus, rooms):
        if not seat.fits:
            raise ValueError(
                f"the draft needs {gib(seat.taken)} of {seat.device}, and {gib(seat.room)} are free there: "
                "the target has its KV cache. Start with the draft, or with a smaller kv_cache_bytes; or "
                "name another draft.device"
            )


def refuse_without_memory(
    config: EngineConfig, memory: HostMemory, gpus: list[str], *, target_is_loaded: bool = False
) -> None:
    """ValueError with what to change, if what is still to be loaded on the CPU would not fit there."""
    target = _Sitter("target", gpu_of(config.device, gpus) or CPU, config.runner)
    sitters = [*([] if target_is_loaded else [target]), *_drafts(config, gpus)]
    on_host = [each for each in sitters if each.device == CPU]
    if on_host:
        refuse_what_memory_lacks([needs_of(each.who, each.runner) for each in on_host], memory)


def _gpus(rooms: Mapping[str, int]) -> list[str]:
    return [device for device in rooms if device != CPU]


def _drafts(config: EngineConfig, gpus: list[str]) -> list[_Sitter]:
    """The draft that this machine runs, if it runs one."""
    if (draft := config.own_draft) is None:
        return []
    target = gpu_of(config.device, gpus)
    device = target or CPU
    if config.mode != "sd":
        device = draft_device(draft.device, gpus, target=target)
    return [_Sitter("draft", device, config.draft_runner)]


def _seated(sitters: list[_Sitter], rooms: Mapping[str, int]) -> list[Seat]:
    """In their order, as they are loaded: who comes later plans with what is left."""
    left = {device: int(_ROOM * room) for device, room in rooms.items()}
    found = []
    for each in sitters:
        needs = needs_of(each.who, each.runner, each.device, left=left[each.device])
        left[each.device] -= needs.weights + needs.kv
        found.append((each, needs))
    return [
        Seat(
            each.who,
            each.device,
            needs.weights,
            needs.kv,
            rooms[each.device],
            int(_ROOM * rooms[each.device]) - left[each.device],
        )
        for each, needs in found
    ]
