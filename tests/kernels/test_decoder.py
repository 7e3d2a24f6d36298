"""The real decoder on our kernels, in the interpreter: logits as torch has them, up to rounding."""

from pathlib import Path

import pytest
import torch

from ssd.attention.backend import AttentionBackend
from ssd.attention.fused import FusedBackend
from ssd.attention.inputs import Branches, PlainInput
from ssd.attention.paged import PagedBackend
from ssd.kernels import rows
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.models.checkpoint import Checkpoint, open_checkpoint
from ssd.models.decoder import DenseDecoder
from ssd.models.row_math import RowMath
from ssd.runtime.eager import EagerRunner
from ssd.runtime.runner import forward
from tests.tiny import write_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["llama3", "qwen3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return open_checkpoint(str(write_checkpoint(request.param, folder)))


def runner(checkpoint: Checkpoint, backend: str) -> EagerRunner:
    config = checkpoint.config
    shape = PoolShape(
        *(config.num_layers, config.num_kv_heads, config.head_dim, 8, 16, torch.float32, CPU, 16, 2)
    )
    pool = KVPool(shape)
    row_math = None if backend == "paged" else RowMath(rows.add_norm, rows.silu_mul)
    model = DenseDecoder(
        *(config, checkpoint.weights()),
        num_positions=128,
        dtype=torch.float32,
        device=CPU,
        row_math=row_math,
    )
    made: AttentionBackend = PagedBackend(pool)
    if backend != "paged":
        made = FusedBackend(pool, config.num_heads, deterministic=backend == "deterministic")
    return EagerRunner(model, made, pool)


@pytest.mark.parametrize("backend", ["fused", "deterministic"])
def test_logits_equal_those_of_the_torch_form(checkpoint: Checkpoint, backend: str) -> None:
    """A prompt, then its next tokens beside another's prompt, then a tree over both."""
    tree_start = 8 * 16 + 16
    steps = [
        [PlainInput(list(range(5, 24)), 0, [3, 1], 3, generated=False)],
        [
            PlainInput([40, 41, 42], 19, [3, 1], 3, generated=True),
            PlainInput(list(range(60, 70)), 0, [6], 1, generated=False),
        ],
        [
            PlainInput(
                [7, 8, 9],
                0,
                [3, 1],
                3,
                generated=True,
                branches=Branches(
                    [22, 23, 23], 22, tree_start, [70, 3, 127], [1 << 70, 1 << 70 | 8, 1 << 70 | 1 << 127]
                ),
            ),
            PlainInput([11], 10, [6], 1, generated=True),
        ],
    ]
    ours, torchs = runner(checkpoint, backend), runner(checkpoint, "paged")
    for step in steps:
        torch.testing.assert_close(forward(ours, step), forward(torchs, step), rtol=1e-4, atol=1e-4)
