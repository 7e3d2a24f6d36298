"""The eager runner: plain torch, any device.

Knows how a batch goes through the model. Deterministic mode pads rows into fixed tiles, so that a
token's logits have the same bits alone, in a batch, in any chunk and in any mode. On CPUs each operation then
runs on one thread (models/shards.py), decisions included.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ssd.attention.backend import AttentionBackend
from ssd.attention.batch import Batch, BatchWriter
from ssd.attention.inputs import SequenceInput
from ssd.kvcache.pool import KVPool
from ssd.models.decoder import DecoderInput, DenseDecoder
from ssd.models.shards import ShardThreads
from ssd.runtime.decision import decision_on
from ssd.runtime.layout import Tiling, packed_layout, tiled_layout
from ssd.runtime.runner import FinishedStep, InFlightStep
from ssd.sampling import CoupledDecision

T = TypeVar("T")


class EagerRunner:
    num_uncaptured = 0
    """This runner captures no steps."""

    def __init__(
        self,
        model: DenseDecoder,
        attention: AttentionBackend,
        pool: KVPool,
        *,
        tiling: Tiling | None = None,
        threads: ShardThreads | None = None,
    ) -> None:
        """`threads`: the model's shard threads in deterministic mode; None otherwise."""
        self._threads = threads
        self.model = model
        self._attention = attention
        self._device = pool.shape.device
        self._writer = BatchWriter(pool.shape.block_size, pool.scratch_slot)
        self._tiling = tiling

    @property
    def is_async(self) -> bool:
        return self._device.type == "cuda"

    @property
    def head_tokens(self) -> Tensor | None:
        """The tokens of the logits' columns; None: the whole vocabulary."""
        return self.model.head_tokens

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        layout = packed_layout(rows) if self._tiling is None else tiled_layout(rows, self._tiling)
        return self._writer.write(rows, layout)

    @torch.inference_mode()
    def launch(self, batch: Batch, finish: Callable[[Tensor], T]) -> InFlightStep[T]:
        # Copy all inputs to the device before the model runs: a later copy would wait for the model.
        decide = decision_on(self._device, finish) if isinstance(finish, CoupledDecision) else finish
        with self._threads.one_for_each_operation() if self._threads else contextlib.nullcontext():
            result = decide(self._logits(batch))
        return in_flight_on(self._device, result)  # type: ignore[arg-type]  # a decision on another device is one

    def _logits(self, batch: Batch) -> Tensor:
        tokens, positions, wanted = (
            each.to(self._device, non_blocking=True) for each in (batch.tokens, batch.positions, batch.wanted)
        )
        hidden = self.model.hidden(DecoderInput(tokens, positions, self._attention.plan(batch), batch.tiles))
        return self.model.logits(hidden[wanted], batch.head_tiles)[: batch.num_wanted].float()


def in_flight_on(device: torch.device, result: T) -> InFlightStep[T]:
    """A step that was queued on a GPU, or that has finished on a CPU."""
    return DeviceStep(result, device) if device.type == "cuda" else FinishedStep(result)


class DeviceStep(Generic[T]):
    """A step queued on a GPU; an event after its last kernel marks its end. Has never run on a GPU."""

    def __init__(self, result: T, device: torch.device) -> None:
        self._result = result
        self._end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        torch.cuda.current_stream(device).record_event(self._end)

    def is_done(self) -> bool:
        return bool(self._end.query())  # type: ignore[no-untyped-call]

    def collect(self) -> T:
        return self._result
