"""The eager runner: plain torch, any device.

Knows how rows become tensors. Deterministic mode pads rows into fixed tiles, so that a
token's logits have the same bits alone, in a batch, in any chunk and in any mode.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.attention.backend import AttentionBackend, Span
from ssd.models.decoder import DenseDecoder, Rows
from ssd.runtime.layout import Layout, packed_layout, tiled_layout
from ssd.runtime.runner import RunnerRow


@dataclass(frozen=True, slots=True)
class Tiling:
    """Rows per tile in deterministic mode."""

    decode: int
    prefill: int


class EagerRunner:
    def __init__(
        self,
        model: DenseDecoder,
        attention: AttentionBackend,
        device: torch.device,
        *,
        tiling: Tiling | None = None,
    ) -> None:
        self.model = model
        self._attention = attention
        self._device = device
        self._tiling = tiling

    @property
    def head_tokens(self) -> Tensor | None:
        """The tokens that the columns of logits stand for; None: the whole vocabulary."""
        return self.model.head_tokens

    @torch.inference_mode()
    def forward(self, rows: Sequence[RunnerRow]) -> Tensor:
        layout = self._layout(rows)
        wanted = [
            first + len(row.tokens) - offset
            for row, first in zip(rows, layout.first_row, strict=True)
            for offset in range(row.num_logits, 0, -1)
        ]
        # All that goes to the device goes there before the model runs: a copy behind it would wait for it.
        tiles = self._head_tiles(len(wanted))
        chosen = [*wanted, *wanted[-1:] * (sum(tiles) - len(wanted))]
        places = torch.tensor(chosen, dtype=torch.long, device=self._device)
        hidden = self.model.hidden(self._tensors(rows, layout))
        return self.model.logits(hidden[places], tiles)[: len(wanted)].float()

    def _layout(self, rows: Sequence[RunnerRow]) -> Layout:
        if self._tiling is None:
            return packed_layout(rows)
        return tiled_layout(rows, decode_tile=self._tiling.decode, prefill_tile=self._tiling.prefill)

    def _tensors(self, rows: Sequence[RunnerRow], layout: Layout) -> Rows:
        tokens = [0] * layout.num_rows
        positions = [0] * layout.num_rows
        spans = []
        for row, first in zip(rows, layout.first_row, strict=True):
            count = len(row.tokens)
            tokens[first : first + count] = row.tokens
            positions[first : first + count] = row.positions
            spans.append(Span(first, count, row.start, row.blocks, row.branches))
        return Rows(
            torch.tensor(tokens, device=self._device),
            torch.tensor(positions, device=self._device),
            self._attention.plan(spans, layout.num_rows),
            layout.tiles,
        )

    def _head_tiles(self, num_wanted: int) -> tuple[int, ...]:
        """The head sees decided rows in decode tiles, whether the row was a prompt's or not."""
        if self._tiling is None or not num_wanted:
            return (num_wanted,)
        tile = self._tiling.decode
        return (tile,) * -(-num_wanted // tile)


class CudaRunner(EagerRunner):
    """Kernels are queued and run by themselves; an event behind the last one tells when they are done."""

    def __init__(
        self,
        model: DenseDecoder,
        attention: AttentionBackend,
        device: torch.device,
        *,
        tiling: Tiling | None = None,
    ) -> None:
        super().__init__(model, attention, device, tiling=tiling)
        self._end = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def forward(self, rows: Sequence[RunnerRow]) -> Tensor:
        logits = super().forward(rows)
        torch.cuda.current_stream(self._device).record_event(self._end)
        return logits

    def is_done(self) -> bool:
        return bool(self._end.query())  # type: ignore[no-untyped-call]
