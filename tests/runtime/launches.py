"""Counts the launches of a decoder's forward, without a GPU."""

from dataclasses import replace

import torch
from torch import Tensor

from ssd.attention.rotation import Rotation
from ssd.kernels.tiles import AttentionShape, attention_tiles
from ssd.models.decoder import DecoderInput, DenseDecoder
from ssd.models.row_math import RowMath
from ssd.selftest.made_up import TINY, RandomWeights
from tests.runtime.recording import Recording

_ONE_OPERATION_EACH = RowMath(
    add_norm=lambda hidden, delta, weight, eps: (hidden, hidden + delta),
    silu_mul=lambda gate_up: gate_up.chunk(2, dim=-1)[0].neg(),
)
"""As our kernels: one launch each."""


class _NoAttention:
    """An attention plan that returns the queries: the kernels of attention are counted separately."""

    def attend(self, layer: int, heads: Tensor, values: Tensor, rotation: Rotation) -> Tensor:
        return heads[:, : -values.shape[1]].flatten(1)


def count_launches() -> tuple[int, int]:
    """The number of launches of a forward with our kernels: per layer, and outside the layers."""
    one_layer, two_layers = (_operations(layers) for layers in (1, 2))
    shape = AttentionShape(1, 2, 4096, TINY.heads, TINY.kv_heads, TINY.head_dim, 2)
    tiles = attention_tiles(shape, num_processors=132, is_hip=False, deterministic=False)
    # One kernel rotates and writes, one attends, and one merges splits if there are several.
    attention = 3 if tiles.num_splits > 1 else 2
    return two_layers - one_layer + attention, 2 * one_layer - two_layers


@torch.inference_mode()
def _operations(layers: int) -> int:
    config, cpu = replace(TINY, layers=layers).config, torch.device("cpu")
    model = DenseDecoder(
        *(config, RandomWeights(config, cpu, torch.float32)),
        num_positions=64,
        dtype=torch.float32,
        device=cpu,
        row_math=_ONE_OPERATION_EACH,
    )
    numbers = torch.arange(4)
    tape = Recording()(lambda: model.logits(model.hidden(DecoderInput(numbers, numbers, _NoAttention()))))
    return len(tape.operations)
