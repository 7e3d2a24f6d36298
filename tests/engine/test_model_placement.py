"""What fits where, said before anything loads: on machines that are made up."""

from dataclasses import replace

import pytest

from ssd.config import DraftConfig, EngineConfig
from ssd.engine.drafting import with_own_device
from ssd.engine.model_placement import place_models, refuse_a_draft_without_room
from ssd.kvcache.pool import NODES_PER_TREE
from ssd.models.checkpoint import open_checkpoint
from tests.tiny import write_checkpoint

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint("medium", tmp_path_factory.mktemp("placed")))


def config(model: str, device: str = "auto", kv: int | None = GIB) -> EngineConfig:
    draft = DraftConfig(model=model)
    return EngineConfig(model=model, mode="ssd", device=device, draft=draft, kv_cache_bytes=kv)


def test_two_gpus_part_target_and_draft(model: str) -> None:
    target, draft = place_models(config(model), {"cuda:0": 8 * GIB, "cuda:1": 4 * GIB, "cpu": GIB})
    assert (target.device, draft.device) == ("cuda:0", "cuda:1")
    assert target.fits
    assert draft.fits
    assert target.weights > 0
    assert "fits" in target.words


def test_one_device_carries_both(model: str) -> None:
    both = place_models(config(model), {"cuda:0": int(1.5 * GIB), "cpu": 64 * GIB})
    assert [each.device for each in both] == ["cuda:0", "cuda:0"]
    assert not any(each.fits for each in both)
    assert "does not fit: 2.01 GiB wanted" in both[0].verdict
    small = place_models(config(model, kv=GIB // 4), {"cuda:0": int(1.5 * GIB), "cpu": 64 * GIB})
    assert all(each.fits for each in small)


def test_without_a_word_kv_takes_what_is_left_as_far_as_texts_can_fill_it(model: str) -> None:
    """As the engine plans it: of a shared GPU the target leaves the draft half; on a CPU 2 GiB at most."""
    plain = config(model, kv=None)
    roomy = place_models(plain, {"cuda:0": 800 * GIB, "cuda:1": 800 * GIB, "cpu": GIB})
    tight = place_models(plain, {"cuda:0": 24 << 20, "cuda:1": 24 << 20, "cpu": GIB})
    shared = place_models(plain, {"cuda:0": 24 << 20, "cpu": GIB})
    assert all(each.fits for each in (*roomy, *tight, *shared))
    full = open_checkpoint(model).config
    slot = 2 * full.num_layers * full.num_kv_heads * full.head_dim * 2
    num_slots = plain.max_num_seqs * full.max_position + plain.runner.num_trees * NODES_PER_TREE
    assert roomy[0].kv == num_slots * slot
    assert roomy[1].kv > tight[1].kv
    assert tight[0].kv + tight[0].weights == pytest.approx(0.9 * (24 << 20), rel=0.02)
    assert shared[0].kv == pytest.approx(tight[0].kv / 2, rel=0.02)
    assert shared[1].taken == pytest.approx(0.9 * (24 << 20), rel=0.02)
    here, _ = place_models(plain, {"cpu": 64 * GIB})
    assert here.kv <= 2 * GIB


def test_whatever_a_shared_gpu_is_called_the_target_leaves_half(model: str) -> None:
    """It was found under another name, and the target took it all."""
    named = replace(config(model, device="cuda:0", kv=None), draft=DraftConfig(model=model, device="auto"))
    found = with_own_device(named, ["cuda:0"])
    assert found.runner.kv_share == 0.5
    assert with_own_device(named, ["cuda:0", "cuda:1"]).runner.kv_share == 1.0


def test_a_draft_that_comes_later_needs_memory_of_its_own(model: str) -> None:
    later = config(model, kv=None)
    refuse_a_draft_without_room(later, {})
    refuse_a_draft_without_room(later, {"cuda:0": GIB})
    with pytest.raises(ValueError, match=r"the draft needs .* Start with the draft, or with a smaller kv"):
        refuse_a_draft_without_room(later, {"cuda:0": 1 << 20})
    refuse_a_draft_without_room(EngineConfig(model=model), {"cuda:0": 0})
