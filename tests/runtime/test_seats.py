"""Who sits where, on machines that are made up."""

import pytest

from ssd.config import DraftConfig, EngineConfig
from ssd.engine.drafting import with_own_device
from ssd.runtime.seats import draft_seats, gpu_of, shares_of

FOUR = ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus", "target", "seats"),
    [
        ("auto", 1, [], None, ("cpu",)),
        ("auto", 2, [], None, ("cpu", "cpu")),
        ("cpu", 1, FOUR, "cuda:0", ("cpu",)),
        ("auto", 1, FOUR[:1], "cuda:0", ("cuda:0",)),
        ("auto", 1, FOUR[:2], "cuda:0", ("cuda:1",)),
        ("auto", 1, FOUR[:2], "cuda:1", ("cuda:0",)),
        ("cuda", 1, FOUR, "cuda:0", ("cuda:3",)),
        ("auto", 2, FOUR, "cuda:0", ("cuda:2", "cuda:3")),
        ("auto", 2, FOUR[:2], None, ("cuda:0", "cuda:1")),
        ("cuda:2", 1, FOUR, "cuda:0", ("cuda:2",)),
        ("cuda:1, cuda:0", 2, FOUR, "cuda:0", ("cuda:1", "cuda:0")),
    ],
)
def test_a_draft_takes_what_the_target_leaves(
    asked: str, ranks: int, gpus: list[str], target: str | None, seats: tuple[str, ...]
) -> None:
    assert draft_seats(asked, ranks, gpus, target=target) == seats


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus", "message"),
    [
        ("auto", 2, FOUR[:2], "need as many GPUs beside the target's, and 1 are left"),
        ("cuda:1", 2, FOUR, "name as many with commas"),
        ("cuda:1,cuda:2", 3, FOUR, "names 2 devices for 3 ranks"),
        ("cuda:7", 1, FOUR, "there are cuda:0, cuda:1, cuda:2, cuda:3"),
        ("cuda", 1, [], "torch sees no GPU"),
    ],
)
def test_what_cannot_be_is_refused(asked: str, ranks: int, gpus: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draft_seats(asked, ranks, gpus, target="cuda:0")


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


def test_names_and_cores() -> None:
    assert gpu_of("auto", FOUR) == gpu_of("cuda", FOUR) == "cuda:0"
    assert gpu_of("cpu", FOUR) is None
    assert shares_of((4, 5, 6), 2) == [(4,), (5, 6)]
    assert shares_of((4,), 2) == [(4,), (4,)]
