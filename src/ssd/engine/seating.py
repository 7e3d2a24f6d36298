"""Who would sit where, and whether it fits: from headers and settings, before anything is loaded.

Weights and the KV cache that was asked for count; what a step needs beside them is left as room. Which
devices there are, and what they have free, comes in.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ssd.config import EngineConfig, RunnerConfig
from ssd.config.runner import KV_CACHE_BYTES
from ssd.models.checkpoint import open_checkpoint
from ssd.models.config import ModelConfig
from ssd.models.linear import resolve_precision
from ssd.models.parallel import Shard
from ssd.runtime.host import resolve_dtype
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


def seating(config: EngineConfig, rooms: Mapping[str, int]) -> list[Seat]:
    """`rooms`: free bytes of each device, by its name; GPUs in their order."""
    gpus = [device for device in rooms if device != CPU]
    target = gpu_of(config.device, gpus)
    wanted = [("target", target or CPU, *_bytes(config.runner, target or CPU, ranks=1))]
    if (draft := config.own_draft) is not None:
        ranks = draft.tensor_parallel_size
        in_turns = config.mode == "sd"
        places: Sequence[str] = (
            (target or CPU,) if in_turns else draft_seats(draft.device, ranks, gpus, target=target)
        )
        for rank, place in enumerate(places):
            who = "draft" if ranks == 1 else f"draft, rank {rank} of {ranks}"
            wanted.append((who, place, *_bytes(config.draft_runner, place, ranks=ranks)))
    taken = defaultdict[str, int](int)
    for _, place, weights, kv in wanted:
        taken[place] += weights + kv
    return [Seat(who, place, weights, kv, rooms[place], taken[place]) for who, place, weights, kv in wanted]


def _bytes(runner: RunnerConfig, place: str, *, ranks: int) -> tuple[int, int]:
    """Of weights and KV on one rank; what cannot be split is refused."""
    model = open_checkpoint(runner.model).config
    shard = Shard(0, ranks)
    for count, what in ((model.num_heads, "attention heads"), (model.num_kv_heads, "key-value heads")):
        shard.share(count, what)
    return _held(model) * _itemsize(
        runner, place, model.dtype
    ) // ranks, runner.kv_cache_bytes or KV_CACHE_BYTES


def _held(model: ModelConfig) -> int:
    """Weights in memory: a tied head is the embedding."""
    return model.num_parameters + (0 if model.tie_embeddings else model.vocab_size * model.hidden_size)


def _itemsize(runner: RunnerConfig, place: str, declared: str | None) -> int:
    if place != CPU:
        return 4 if runner.dtype == "float32" else 2
    cpu = torch.device(CPU)
    dtype = resolve_dtype(runner.dtype, cpu, declared)
    return 1 if resolve_precision(runner.precision, cpu, dtype) == "int8" else dtype.itemsize


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
