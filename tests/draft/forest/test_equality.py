"""The forest's frames are those of today's grower: the small form of `equality.py`."""

from collections.abc import Iterator

import pytest

from tests.draft.forest.games import GAMES, on_tensors
from tests.draft.forest.pair import without_fading
from tests.draft.forest.play import Game, Player

ROUNDS = 24
LONG = 1000


@pytest.fixture(autouse=True)
def _without_fading() -> Iterator[None]:
    with without_fading():
        yield


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_frames_on_arrays(game: Game) -> None:
    player = Player(game, seed=1)
    player.play(ROUNDS)
    assert player.counts["hits"] > 0
    assert player.counts["misses"] > 0
    assert player.pair.num_nodes > 0


@pytest.mark.parametrize("game", GAMES[::2], ids=lambda game: game.name)
def test_frames_on_tensors(game: Game) -> None:
    player = Player(on_tensors(game), seed=2)
    player.play(ROUNDS // 2)
    assert player.pair.num_nodes > 0


@pytest.mark.slow
@pytest.mark.parametrize("game", [*GAMES, *map(on_tensors, GAMES)], ids=lambda game: game.name)
def test_frames_at_full_length(game: Game) -> None:
    Player(game, seed=1).play(LONG)
