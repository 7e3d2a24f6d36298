"""Who sits where, on machines that are made up."""

import pytest

from ssd.config import DraftConfig, EngineConfig
from ssd.engine.drafting import with_own_device
from ssd.runtime.host import draft_device, gpu_of

FOUR = ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


@pytest.mark.parametrize(
    ("asked", "gpus", "target", "device"),
    [
        ("auto", [], None, "cpu"),
        ("cpu", FOUR, "cuda:0", "cpu"),
        ("auto", FOUR[:1], "cuda:0", "cuda:0"),
        ("auto", FOUR[:2], "cuda:0", "cuda:1"),
        ("auto", FOUR[:2], "cuda:1", "cuda:0"),
        ("auto", FOUR[:2], None, "cuda:1"),
        ("cuda", FOUR, "cuda:0", "cuda:3"),
        ("cuda:2", FOUR, "cuda:0", "cuda:2"),
    ],
)
def test_a_draft_takes_what_the_target_leaves(
    asked: str, gpus: list[str], target: str | None, device: str
) -> None:
    assert draft_device(asked, gpus, target=target) == device


@pytest.mark.parametrize(
    ("asked", "gpus", "message"),
    [
        ("cuda:1,cuda:2", FOUR, "there are cuda:0, cuda:1, cuda:2, cuda:3"),
        ("cuda:7", FOUR, "there are cuda:0, cuda:1, cuda:2, cuda:3"),
        ("cuda", [], "torch sees no GPU"),
    ],
)
def test_a_device_that_is_not_there_is_refused(asked: str, gpus: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draft_device(asked, gpus, target="cuda:0")


@pytest.mark.parametrize(
    ("target", "gpus", "device"),
    [
        ("auto", FOUR[:2], "cuda:1"),
        ("cuda:1", FOUR[:2], "cuda:0"),
        ("auto", FOUR[:1], "cuda:0"),
        ("cpu", [], "auto"),
    ],
)
def test_the_engine_tells_its_draft_where_to_go(target: str, gpus: list[str], device: str) -> None:
    config = EngineConfig(model="m", mode="ssd", device=target, draft=DraftConfig(model="d"))
    draft = with_own_device(config, gpus).draft
    assert draft is not None
    assert draft.device == device


def test_names() -> None:
    assert gpu_of("auto", FOUR) == gpu_of("cuda", FOUR) == "cuda:0"
    assert gpu_of("cpu", FOUR) is None
