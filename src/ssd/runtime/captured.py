"""The runner that replays captured steps. There is a captured step for each bucket size and kind of decision.

A batch is copied into static buffers, the step is replayed, and the decided tokens are read from a static
buffer. Padding rows write to the scratch slot. Steps that no bucket holds, mostly long prompts, run on the
eager runner: each reason is logged once, and each such step is counted.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ssd.attention.backend import AttentionBackend
from ssd.attention.batch import Batch, BatchWriter
from ssd.attention.inputs import SequenceInput
from ssd.kvcache.pool import KVPool
from ssd.models.decoder import DecoderInput, DenseDecoder
from ssd.runtime.buckets import Buckets
from ssd.runtime.capture import Capture, Replay
from ssd.runtime.decision import decision_on
from ssd.runtime.eager import EagerRunner, in_flight_on
from ssd.runtime.runner import InFlightStep
from ssd.runtime.static import StaticBuffers, draws_of_padding
from ssd.sampling import CoupledDecision, Draws

T = TypeVar("T")
Kind = Literal["greedy", "sampled", "truncated"]
KINDS: tuple[Kind, ...] = ("greedy", "sampled", "truncated")

logger = logging.getLogger(__name__)


class CapturedRunner:
    def __init__(
        self,
        eager: EagerRunner,
        attention: AttentionBackend,
        pool: KVPool,
        buckets: Buckets,
        capture: Capture,
    ) -> None:
        """`eager` runs the batches that fit no captured step; it must have the same model and pool."""
        self._eager = eager
        self._device = pool.shape.device
        self._buckets = buckets
        self._writer = BatchWriter(pool.shape.block_size, pool.scratch_slot)
        self.num_replayed: Counter[tuple[int, Kind]] = Counter()
        self.num_eager: Counter[str] = Counter()
        """Steps that ran eagerly, by reason."""
        self._steps: dict[tuple[int, Kind], _CapturedStep] = {}
        with torch.inference_mode():
            self._capture_all(attention, capture)

    @property
    def model(self) -> DenseDecoder:
        return self._eager.model

    @property
    def is_async(self) -> bool:
        return self._eager.is_async

    @property
    def num_uncaptured(self) -> int:
        return self.num_eager.total()

    @property
    def head_tokens(self) -> Tensor | None:
        return self._eager.head_tokens

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        layout = self._buckets.layout(rows)
        return self._eager.batch(rows) if layout is None else self._writer.write(rows, layout)

    @torch.inference_mode()
    def launch(self, batch: Batch, finish: Callable[[Tensor], T]) -> InFlightStep[T]:
        kind = kind_of(finish)
        step = self._steps.get((batch.num_rows, kind))
        if step is None or not step.buffers.fits(batch):
            self._say_why(batch, kind)
            return self._eager.launch(batch, finish)
        self.num_replayed[batch.num_rows, kind] += 1
        step.run(batch, finish.draws if isinstance(finish, CoupledDecision) else None)
        # Return copies: the next replay overwrites the buffers.
        if isinstance(finish, CoupledDecision):
            return in_flight_on(self._device, step.buffers.tokens[: batch.num_wanted].clone())  # type: ignore[arg-type]  # T is Tensor here
        return in_flight_on(self._device, finish(step.buffers.logits[: batch.num_wanted].clone()))

    def _capture_all(self, attention: AttentionBackend, capture: Capture) -> None:
        """Captures the largest size first: smaller ones then reuse its memory in the shared pool."""
        largest: StaticBuffers | None = None
        for size in sorted(self._buckets.sizes, reverse=True):
            padding = self._writer.write([], self._buckets.padded(size))
            largest = largest or StaticBuffers.of(padding, self.model.num_columns, self._device)
            buffers = largest.leading(padding)
            # Capturing also runs the step, so the buffers hold padding, which writes to the scratch slot.
            buffers.load(padding, draws_of_padding(size, self._device))
            for kind in KINDS:
                try:
                    self._steps[size, kind] = _CapturedStep(self.model, attention, buffers, kind, capture)
                except RuntimeError as error:
                    logger.warning("a %s step of %d rows was not captured: %s", kind, size, error)

    def _say_why(self, batch: Batch, kind: Kind) -> None:
        reason = self._reason(batch, kind)
        if reason not in self.num_eager:
            logger.info("%s: such steps run eagerly", reason)
        self.num_eager[reason] += 1

    def _reason(self, batch: Batch, kind: Kind) -> str:
        largest = max(self._buckets.sizes)
        if batch.num_rows > largest:
            return f"a step of more than {largest} rows, which no bucket holds"
        if (batch.num_rows, kind) not in self._steps:
            return f"a {kind} step of {batch.num_rows} rows, which was not captured"
        return "a step whose layout fits no bucket"


class _CapturedStep:
    """A captured step of one size and kind: its buffers and its replay."""

    def __init__(
        self,
        model: DenseDecoder,
        attention: AttentionBackend,
        buffers: StaticBuffers,
        kind: Kind,
        capture: Capture,
    ) -> None:
        self.buffers = buffers
        self._model, self._attention = model, attention
        draws = _as_kind(buffers.draws, kind)
        self._decision = decision_on(buffers.tokens.device, CoupledDecision(draws))
        self.replay: Replay = capture(self._work)

    def run(self, batch: Batch, draws: Draws | None) -> None:
        self.buffers.load(batch, draws)
        self.replay()

    def _work(self) -> None:
        batch, buffers = self.buffers.batch, self.buffers
        rows = DecoderInput(batch.tokens, batch.positions, self._attention.plan(batch), batch.tiles)
        hidden = self._model.hidden(rows).index_select(0, batch.wanted)
        buffers.logits.copy_(self._model.logits(hidden, batch.head_tiles))
        buffers.tokens.copy_(self._decision(buffers.logits))


def kind_of(finish: object) -> Kind:
    """The kind of captured step to replay for `finish`. If it only needs logits: the cheapest kind."""
    if not isinstance(finish, CoupledDecision) or finish.draws is None:
        return "greedy"
    return "sampled" if finish.draws.truncation is None else "truncated"


def _as_kind(draws: Draws, kind: Kind) -> Draws | None:
    if kind == "greedy":
        return None
    return replace(draws, truncation=None) if kind == "sampled" else draws
