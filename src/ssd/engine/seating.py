"""Who would sit where, and whether it fits: from headers and settings, before anything is loaded.

Weights count, and KV caches as the engine would plan them; what a step needs beside them is left as room.
Which devices there are, and what they have free, comes in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from ssd.config import EngineConfig, RunnerConfig
from ssd.engine.drafting import with_own_device
from ssd.models.checkpoint import open_checkpoint
from ssd.models.config import ModelConfig
from ssd.models.linear import resolve_precision
from ssd.models.parallel import Shard
from ssd.runtime.host import resolve_dtype
from ssd.runtime.room import Room, bytes_of
from ssd.runtime.seats import draft_seats, gpu_of

CPU = "cpu"
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
            return f"fits, {_gib(spare)} to spare"
        return (
            f"does not fit: {_gib(self.taken)} wanted, {_gib(_ROOM * self.room)} of {_gib(self.room)} to be "
            "had: another device, a smaller --kv-cache-bytes, or more ranks"
        )

    @property
    def words(self) -> str:
        return f"{self.device}: {_gib(self.weights)} of weights, {_gib(self.kv)} of KV; {self.verdict}"


@dataclass(frozen=True, slots=True)
class _Sitter:
    who: str
    device: str
    runner: RunnerConfig
    ranks: int = 1


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
                f"the draft needs {_gib(seat.taken)} of {seat.device}, and {_gib(seat.room)} are free there: "
                "the target has its KV cache. Start with the draft, or with a smaller kv_cache_bytes; or "
                "name another draft.device"
            )


def _gpus(rooms: Mapping[str, int]) -> list[str]:
    return [device for device in rooms if device != CPU]


def _drafts(config: EngineConfig, gpus: list[str]) -> Iterable[_Sitter]:
    if (draft := config.own_draft) is None:
        return
    ranks, target = draft.tensor_parallel_size, gpu_of(config.device, gpus)
    places = (
        (target or CPU,) if config.mode == "sd" else draft_seats(draft.device, ranks, gpus, target=target)
    )
    for rank, place in enumerate(places):
        who = "draft" if ranks == 1 else f"draft, rank {rank} of {ranks}"
        yield _Sitter(who, place, config.draft_runner, ranks)


def _seated(sitters: list[_Sitter], rooms: Mapping[str, int]) -> list[Seat]:
    """In their order, as they are loaded: who comes later plans with what is left."""
    left = {device: int(_ROOM * room) for device, room in rooms.items()}
    found = []
    for each in sitters:
        model = open_checkpoint(each.runner.model).config
        dtype = _dtype(each.runner, each.device, model.dtype)
        weights = _held(model) * _itemsize(each, dtype) // each.ranks
        left[each.device] -= weights
        kv = _kv_bytes(each, model, dtype, left[each.device])
        left[each.device] -= kv
        found.append((each, weights, kv))
    return [
        Seat(
            each.who,
            each.device,
            weights,
            kv,
            rooms[each.device],
            int(_ROOM * rooms[each.device]) - left[each.device],
        )
        for each, weights, kv in found
    ]


def _kv_bytes(sitter: _Sitter, model: ModelConfig, dtype: torch.dtype, left: int) -> int:
    """What was asked for; or on a GPU all that is left, as far as its texts can fill it."""
    runner, shard = sitter.runner, Shard(0, sitter.ranks)
    shard.share(model.num_heads, "attention heads")
    mine = replace(model, num_kv_heads=shard.share(model.num_kv_heads, "key-value heads"))
    if runner.kv_cache_bytes is not None:
        return runner.kv_cache_bytes
    room = Room(runner, mine, dtype, torch.device(CPU))
    if sitter.device == CPU:
        return bytes_of(room.on_host())
    return bytes_of(room.shape(max(int(left * runner.kv_share), bytes_of(room.one_block))))


def _held(model: ModelConfig) -> int:
    """Weights in memory: a tied head is the embedding."""
    return model.num_parameters + (0 if model.tie_embeddings else model.vocab_size * model.hidden_size)


def _dtype(runner: RunnerConfig, place: str, declared: str | None) -> torch.dtype:
    """On a GPU one of two bytes, unless four were asked for: which, that GPU knows."""
    if place != CPU:
        return torch.float32 if runner.dtype == "float32" else torch.bfloat16
    return resolve_dtype(runner.dtype, torch.device(CPU), declared)


def _itemsize(sitter: _Sitter, dtype: torch.dtype) -> int:
    if sitter.device != CPU:
        return dtype.itemsize
    return (
        1
        if resolve_precision(sitter.runner.precision, torch.device(CPU), dtype) == "int8"
        else dtype.itemsize
    )


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
