"""Who computes attention: our kernels on a GPU that Triton serves, torch elsewhere."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssd.attention.choice import captured_backend, eager_backend
from ssd.attention.fused import FusedBackend
from ssd.attention.paged import PagedBackend
from ssd.attention.sdpa import SdpaBackend
from ssd.kernels import language
from ssd.kernels.tiles import Demand, attention_tiles, can_attend, most_tiles
from ssd.kernels.traffic import attention_traffic
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
    assert isinstance(eager_backend(pool_on("cuda", 96), 8, deterministic=False), SdpaBackend)


def test_torch_on_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "triton", None)
    assert isinstance(eager_backend(pool_on("cuda"), 8, deterministic=False), SdpaBackend)


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


@pytest.mark.parametrize(
    ("heads", "fits"), [((64, 8, 128), True), ((7, 1, 64), True), ((8, 8, 80), False), ((128, 1, 64), False)]
)
def test_heads_that_fit(heads: tuple[int, int, int], fits: bool) -> None:
    assert can_attend(*heads) is fits


def demand(rows: int, sequences: int, keys: int = 4096) -> Demand:
    return Demand(rows, sequences + 1, keys, 32, 8, 64, 2)


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


def test_tiles_have_room_for_padding_behind_every_sequence() -> None:
    assert most_tiles(10, 3, 4) == 8
    assert most_tiles(5, 3, 4) == 5


def test_a_tile_reads_its_keys_once() -> None:
    few, many = (attention_traffic(demand(rows, 1), 4096, 0, num_processors=1) for rows in (12, 64))
    keys = 4096 * 2 * 8 * 64 * 2
    assert few.read == keys + 12 * 32 * 64 * 2
    assert many.read == 2 * keys + 64 * 32 * 64 * 2
