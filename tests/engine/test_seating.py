"""What fits where, said before anything loads: on machines that are made up."""

import pytest

from ssd.config import DraftConfig, EngineConfig
from ssd.engine.seating import seating
from tests.tiny import write_checkpoint

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint("medium", tmp_path_factory.mktemp("seated")))


def config(model: str, device: str = "auto", ranks: int = 1, kv: int = GIB) -> EngineConfig:
    draft = DraftConfig(model=model, tensor_parallel_size=ranks)
    return EngineConfig(model=model, mode="ssd", device=device, draft=draft, kv_cache_bytes=kv)


def test_two_gpus_part_target_and_draft(model: str) -> None:
    target, draft = seating(config(model), {"cuda:0": 8 * GIB, "cuda:1": 4 * GIB, "cpu": GIB})
    assert (target.device, draft.device) == ("cuda:0", "cuda:1")
    assert target.fits
    assert draft.fits
    assert target.weights > 0
    assert "fits" in target.words


def test_one_device_carries_both(model: str) -> None:
    both = seating(config(model), {"cuda:0": int(1.5 * GIB), "cpu": 64 * GIB})
    assert [each.device for each in both] == ["cuda:0", "cuda:0"]
    assert not any(each.fits for each in both)
    assert "does not fit: 2.0 GiB wanted" in both[0].verdict
    small = seating(config(model, kv=GIB // 4), {"cuda:0": int(1.5 * GIB), "cpu": 64 * GIB})
    assert all(each.fits for each in small)


def test_ranks_have_a_share_each_and_what_cannot_be_split_is_refused(model: str) -> None:
    rooms = {f"cuda:{index}": 8 * GIB for index in range(6)} | {"cpu": GIB}
    whole = seating(config(model), rooms)[1]
    _, *ranks = seating(config(model, ranks=2), rooms)
    assert [each.who for each in ranks] == ["draft, rank 0 of 2", "draft, rank 1 of 2"]
    assert [each.device for each in ranks] == ["cuda:4", "cuda:5"]
    assert ranks[0].weights == whole.weights // 2
    with pytest.raises(ValueError, match=r"key-value heads \(2\) cannot be split over 4 ranks"):
        seating(config(model, ranks=4), rooms)
