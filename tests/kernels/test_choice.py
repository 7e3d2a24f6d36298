"""Who computes attention: our kernels on a GPU that Triton serves, torch elsewhere."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssd.attention import fused
from ssd.attention.batch import BatchWriter
from ssd.attention.choice import captured_backend, deterministic_captured_backend, eager_backend, mover
from ssd.attention.fused import FusedBackend
from ssd.attention.inputs import Layout, PlainInput
from ssd.attention.paged import PagedBackend
from ssd.attention.sdpa import SdpaBackend
from ssd.kernels import language
from ssd.kernels.tiles import NOT_KNOWN, AttentionShape, attention_tiles
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.runtime.decision import FusedDecision, decision_on
from ssd.sampling import CoupledDecision, Draws, SamplingParams, Truncation, coupled


def pool_on(device: str, head_dim: int = 64) -> Any:
    """Not memory: only what a backend looks at when it is made."""
    shape = PoolShape(1, 2, head_dim, 4, 16, torch.bfloat16, torch.device(device), 16)
    keys = torch.empty(0)
    return SimpleNamespace(shape=shape, keys=keys, values=keys)


def test_torch_on_a_cpu_even_where_kernels_could_be_interpreted() -> None:
    pool = KVPool(pool_on("cpu").shape)
    assert isinstance(eager_backend(pool, 8, deterministic=False), SdpaBackend)
    assert isinstance(captured_backend(pool, 8), PagedBackend)


def test_kernels_on_a_gpu_for_heads_that_they_are_written_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "INTERPRETS", False)
    assert isinstance(eager_backend(pool_on("cuda"), 8, deterministic=False), FusedBackend)
    assert isinstance(captured_backend(pool_on("cuda"), 8), FusedBackend)
    assert isinstance(deterministic_captured_backend(pool_on("cuda"), 8), FusedBackend)
    assert isinstance(eager_backend(pool_on("cuda", 96), 8, deterministic=False), SdpaBackend)
    assert deterministic_captured_backend(pool_on("cuda", 96), 8) is None
    # Without kernels a captured step would gather every row's keys: it is not captured.
    assert captured_backend(pool_on("cuda", 96), 8) is None


def shape_here(num_trees: int) -> PoolShape:
    return PoolShape(1, 2, 32, 1, 16, torch.float32, torch.device("cpu"), 16, num_trees)


def test_keys_move_by_a_kernel_where_it_can_be_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, other = KVPool(shape_here(1)), KVPool(shape_here(1))
    for mine, its in ((pool.keys, other.keys), (pool.values, other.values)):
        its.copy_(mine.copy_(torch.randn(mine.shape)))
    assert mover(pool) == pool.move
    on_gpu: Any = SimpleNamespace(**vars(pool), move=pool.move)
    on_gpu.shape = replace(pool.shape, device=torch.device("cuda"))
    monkeypatch.setattr(language, "can_launch", lambda device: False)
    assert mover(on_gpu) == pool.move
    monkeypatch.setattr(language, "can_launch", lambda device: True)
    sources, targets = torch.tensor([40, 41, 16]), torch.tensor([2, 3, 16])
    mover(on_gpu)(sources, targets)
    other.move(sources, targets)
    assert torch.equal(pool.keys, other.keys)
    assert torch.equal(pool.values, other.values)


def test_kernels_decide_on_a_gpu_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Draws(torch.tensor([5, 6]), torch.tensor([1, 2]), torch.tensor([0.0, 0.8]))
    monkeypatch.setattr(CoupledDecision, "on", lambda decision, device: decision)
    assert isinstance(decision_on(torch.device("cpu"), CoupledDecision(draws)), CoupledDecision)
    monkeypatch.setattr(language, "INTERPRETS", False)
    gpu = torch.device("cuda")
    assert isinstance(decision_on(gpu, CoupledDecision(draws)), FusedDecision)
    assert isinstance(decision_on(gpu, CoupledDecision(None)), CoupledDecision)


@pytest.mark.parametrize("most_scores", [1 << 25, 700])
@pytest.mark.parametrize("top_k", [0, 3])
def test_a_fused_decision_is_the_decision_also_in_pieces(
    top_k: int, most_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coupled, "_MOST_SCORES", most_scores)
    params = [SamplingParams(temperature=0.8, top_k=top_k), SamplingParams(temperature=0.0)]
    draws = Draws(torch.tensor([5, 6]), torch.tensor([1, 2]), torch.tensor([0.8, 0.0]), Truncation.of(params))
    logits = torch.randn(2, 700, generator=torch.Generator().manual_seed(0))
    assert torch.equal(FusedDecision(draws)(logits), CoupledDecision(draws)(logits))
    with pytest.raises(ValueError, match="1 rows of logits for 2 draws"):
        FusedDecision(draws)(logits[:1])


def demand(rows: int, sequences: int, keys: int = 4096) -> AttentionShape:
    return AttentionShape(rows, sequences + 1, keys, 32, 8, 64, 2)


def test_a_sequences_rows_share_a_tile_and_few_programs_split_their_keys() -> None:
    def tiles(rows: int, sequences: int, keys: int = 4096) -> tuple[int, int]:
        found = attention_tiles(
            demand(rows, sequences, keys), num_processors=132, is_hip=False, deterministic=False
        )
        return found.rows(4), found.num_splits

    assert tiles(12, 1) == (16, 16)
    assert tiles(1, 1) == (4, 16)
    assert tiles(1, 1, keys=200) == (4, 1)
    assert tiles(64 * 12, 64) == (16, 1)
    assert tiles(2048, 1) == (32, 1)
    # Where any rows may come, a sequence's still share one: what verifies nine is not read nine times.
    assert tiles(16, NOT_KNOWN - 1)[0] == 16
    assert tiles(1, NOT_KNOWN - 1)[0] == 4


def test_tiles_follow_the_sequences_that_a_batch_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that its tables have room for."""
    seen: list[AttentionShape] = []
    monkeypatch.setattr(fused, "PagedAttention", lambda sight, demand, **how: seen.append(demand))
    pool = KVPool(shape_here(0))
    row = PlainInput([5] * 9, 0, [0], 1, generated=True)
    writer = BatchWriter(16, pool.scratch_slot)
    for layout in (Layout((0,), 16, num_sequences=64), Layout((), 16, num_sequences=64)):
        FusedBackend(pool, 4).plan(writer.write([row][: len(layout.first_rows)], layout))
    assert [each.num_sequences for each in seen] == [2, NOT_KNOWN]
