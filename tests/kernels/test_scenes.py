"""Every kernel equals its torch form: a fixed grid."""

import math
from contextlib import nullcontext

import pytest
import torch

from ssd.attention.fused import FusedBackend
from ssd.attention.rotation import Rotation
from ssd.attention.sdpa import SdpaBackend
from ssd.kernels.decide import decide_rows
from ssd.kernels.language import INTERPRETS
from ssd.kernels.rope import rotate_and_write_kv
from ssd.sampling import Draws
from tests.attention.attended import attended
from tests.kernels.bfloat16 import bfloat16_computes
from tests.kernels.model_checks import (
    SCENES,
    AttentionCase,
    CaseSequence,
    KernelCase,
    LogitsCase,
    RowsCase,
    batch_and_pool,
    check_kernels,
)

CPU = torch.device("cpu")
GRID = (
    *SCENES,
    # Pages that are not a power of two, a group of seven, rows of one sequence that fill more than a tile.
    AttentionCase(14, 2, 64, torch.float32, (CaseSequence(11, 20), CaseSequence(0, 1)), page=5, padding=2),
    AttentionCase(3, 3, 64, torch.float16, (CaseSequence(65, 3), CaseSequence(64, 1), CaseSequence(63, 17))),
    # Shares of splits that end inside a page, and one that is empty.
    AttentionCase(2, 1, 128, torch.float16, (CaseSequence(511, 1), CaseSequence(514, 4))),
    AttentionCase(2, 1, 64, torch.float32, (CaseSequence(700, 6, 120), CaseSequence(3, 1))),
    AttentionCase(
        4, 2, 32, torch.float16, (CaseSequence(2046, 4), CaseSequence(0, 3)), deterministic=True, padding=1
    ),
    AttentionCase(8, 2, 64, torch.bfloat16, (CaseSequence(70, 9), CaseSequence(0, 4))),
    AttentionCase(8, 4, 128, torch.bfloat16, (CaseSequence(300, 6, 40), CaseSequence(12, 2))),
    LogitsCase(4, 1024, dtype=torch.bfloat16),
    RowsCase(4, 2048, 700, torch.bfloat16),
    LogitsCase(2, 3, truncates=True),
)


def test_kernels_are_interpreted_here() -> None:
    assert INTERPRETS


@pytest.mark.parametrize("scene", GRID, ids=str)
def test_a_kernel_equals_its_oracle(scene: KernelCase) -> None:
    with bfloat16_computes() if scene.dtype == torch.bfloat16 else nullcontext():
        findings = list(check_kernels(CPU, (scene,)))
    assert len(findings) == (3 if isinstance(scene, LogitsCase) else 2)
    assert [each for each in findings if not each.is_sound] == []


def test_of_equal_scores_the_lowest_token_wins_and_0_where_there_is_none() -> None:
    logits = torch.zeros(4, 3000)
    logits[1] = -math.inf
    logits[2, 1500] = logits[2, 2900] = 1.0
    logits[3, :2000] = -math.inf
    draws = Draws(torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long), torch.zeros(4))
    assert decide_rows(logits, draws, None).tolist() == [0, 0, 1500, 2000]


def test_a_write_touches_its_slots_alone() -> None:
    pool = torch.full((2, 3, 10, 32), math.nan)
    # Three query heads for each of three key heads: not a power of two.
    heads, values = torch.split(torch.randn(4, 15, 32), [12, 3], dim=1)
    angles = torch.randn(4, 1, 16)
    rotation = Rotation(angles.cos(), angles.sin())
    slots = torch.tensor([9, 0, 4, 7])
    rotate_and_write_kv(heads, values, rotation.cos, rotation.sin, pool[0], pool[1], slots)
    assert torch.equal(pool[0][:, slots], rotation.apply(heads)[:, -3:].transpose(0, 1))
    assert torch.equal(pool[1][:, slots], values.transpose(0, 1))
    assert pool[:, :, [1, 2, 3, 5, 6, 8]].isnan().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", [FusedBackend, SdpaBackend])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_a_refused_token_left_reaches_no_other_row_of_its_tile(
    value: float, backend: type[FusedBackend] | type[SdpaBackend]
) -> None:
    """Rows of a text before it, and siblings of it in a tree: 0 times its value would be NaN."""
    scene = AttentionCase(4, 2, 64, torch.float32, (CaseSequence(20, 6), CaseSequence(9, 5, 20)))
    outputs = []
    for spoils in (False, True):
        batch, pool = batch_and_pool(scene, CPU)
        if backend is SdpaBackend:
            # It never stores what is no number, so it never meets any that was there before.
            pool.keys.nan_to_num_(0.0)
            pool.values.nan_to_num_(0.0)
        given = torch.randn(batch.num_rows, 8, 64, generator=torch.Generator().manual_seed(1))
        if spoils:
            # The text's last row, and a node that no other descends from.
            given[[5, 10]] = value
        parts = torch.split(given, [4, 2, 2], dim=1)
        outputs.append(attended(backend(pool, 4).plan(batch), 1, *parts))
    others = [*range(5), *range(6, 10)]
    assert torch.equal(outputs[0][others], outputs[1][others])
    assert not outputs[1][[5, 10]].isfinite().any()
