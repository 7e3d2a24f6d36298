"""The runner of captured steps: one for each bucket of rows and way of deciding, replayed with new contents.

Knows static buffers: a batch is copied into them, the step is replayed, and what it decided lies where it
always lies. Rows that fill a bucket up belong to nobody and write to scratch. What no bucket holds, prompts
above all, another runner computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ssd.attention.backend import AttentionBackend
from ssd.attention.batch import Batch, BatchWriter
from ssd.attention.choice import captured_backend
from ssd.attention.rows import Row
from ssd.kvcache.pool import KVPool
from ssd.models.decoder import DenseDecoder, Rows
from ssd.runtime.buckets import Buckets
from ssd.runtime.capture import Capture
from ssd.runtime.decision import decision_on
from ssd.runtime.eager import EagerRunner, flight_on
from ssd.runtime.runner import Flight
from ssd.sampling import CoupledDecision, Draws, Truncation

T = TypeVar("T")
Kind = Literal["greedy", "drawn", "truncated"]
KINDS: tuple[Kind, ...] = ("greedy", "drawn", "truncated")


class CapturedRunner:
    def __init__(self, beyond: EagerRunner, pool: KVPool, buckets: Buckets, capture: Capture) -> None:
        """`beyond` has the same model and pool, and computes what no bucket holds."""
        self._beyond = beyond
        self._device = pool.shape.device
        self._buckets = buckets
        self._writer = BatchWriter(pool.shape.block_size, pool.scratch_slot)
        attention = captured_backend(pool, _heads_here(beyond.model, pool))
        with torch.inference_mode():
            self._steps = {
                (size, kind): _Step(beyond.model, attention, self._padding(size), kind, capture)
                for size in buckets.sizes
                for kind in KINDS
            }

    @property
    def is_async(self) -> bool:
        return self._beyond.is_async

    @property
    def head_tokens(self) -> Tensor | None:
        return self._beyond.head_tokens

    def batch(self, rows: Sequence[Row]) -> Batch:
        layout = self._buckets.layout(rows)
        return self._beyond.batch(rows) if layout is None else self._writer.write(rows, layout)

    @torch.inference_mode()
    def launch(self, batch: Batch, finish: Callable[[Tensor], T]) -> Flight[T]:
        step = self._steps.get((batch.num_rows, _kind(finish)))
        if step is None:
            return self._beyond.launch(batch, finish)
        step.run(batch, finish.draws if isinstance(finish, CoupledDecision) else None)
        # Copies: the next replay writes there again.
        if isinstance(finish, CoupledDecision):
            return flight_on(self._device, step.tokens[: batch.num_wanted].clone())  # type: ignore[arg-type]  # T is Tensor here
        return flight_on(self._device, finish(step.logits[: batch.num_wanted].clone()))

    def _padding(self, size: int) -> Batch:
        """Input of nothing but padding, in memory of its own."""
        written = self._writer.write([], self._buckets.padded(size))
        return replace(
            written, **{name: getattr(written, name).to(self._device).clone() for name in _TENSORS}
        )


def _heads_here(model: DenseDecoder, pool: KVPool) -> int:
    """Query heads: all of the model's, or a rank's share of them."""
    return model.config.num_heads * pool.shape.num_kv_heads // model.config.num_kv_heads


_TENSORS = tuple(each.name for each in fields(Batch) if each.type is Tensor)


class _Step:
    """A step of one size: where its input lies, where its results lie, and what runs it again.

    It is captured on padding alone: nothing that counts is written.
    """

    def __init__(
        self, model: DenseDecoder, attention: AttentionBackend, padding: Batch, kind: Kind, capture: Capture
    ) -> None:
        self._model, self._attention = model, attention
        self._batch = padding
        self._draws = _draws_of_padding(padding)
        size, device = padding.num_rows, padding.tokens.device
        self.logits = torch.zeros(size, model.num_columns, device=device)
        self.tokens = torch.zeros(size, dtype=torch.long, device=device)
        self._decision = decision_on(device, CoupledDecision(_as_kind(self._draws, kind)))
        self._replay = capture(self._work)

    def run(self, batch: Batch, draws: Draws | None) -> None:
        for name in _TENSORS:
            getattr(self._batch, name).copy_(getattr(batch, name), non_blocking=True)
        if draws is not None:
            _copy_draws(draws, self._draws)
        self._replay()

    def _work(self) -> None:
        batch = self._batch
        rows = Rows(batch.tokens, batch.positions, self._attention.plan(batch), batch.tiles)
        hidden = self._model.hidden(rows).index_select(0, batch.wanted)
        self.logits.copy_(self._model.logits(hidden, batch.head_tiles))
        self.tokens.copy_(self._decision(self.logits))


def _kind(finish: object) -> Kind:
    """Whoever wants the logits is given those of any step: the cheapest."""
    if not isinstance(finish, CoupledDecision) or finish.draws is None:
        return "greedy"
    return "drawn" if finish.draws.truncation is None else "truncated"


def _as_kind(draws: Draws, kind: Kind) -> Draws | None:
    if kind == "greedy":
        return None
    return replace(draws, truncation=None) if kind == "drawn" else draws


def _draws_of_padding(batch: Batch) -> Draws:
    """Greedy, whatever seed and position."""
    size, device = batch.num_rows, batch.tokens.device
    truncation = Truncation(
        torch.full((size,), -torch.inf, dtype=torch.float64, device=device),
        torch.zeros(size, dtype=torch.long, device=device),
        torch.ones(size, dtype=torch.float64, device=device),
    )
    seeds, positions = (torch.zeros(size, dtype=torch.long, device=device) for _ in range(2))
    return Draws(seeds, positions, torch.zeros(size, device=device), truncation)


def _copy_draws(given: Draws, static: Draws) -> None:
    """Of the first rows; what padding behind them draws is nobody's."""
    pairs = [(getattr(given, name), getattr(static, name)) for name in ("seeds", "positions", "temperatures")]
    if given.truncation is not None and static.truncation is not None:
        names = [each.name for each in fields(Truncation)]
        pairs += [(getattr(given.truncation, name), getattr(static.truncation, name)) for name in names]
    for source, place in pairs:
        place[: len(source)].copy_(source, non_blocking=True)
