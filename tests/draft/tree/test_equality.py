"""The forest's frames are those of today's scheduler: the small form of `equality.py`."""

from collections.abc import Iterator

import pytest

from ssd.draft.tree.tables import BINS, RANKS
from tests.draft.tree.games import GAMES, on_tensors
from tests.draft.tree.pair import without_fading
from tests.draft.tree.play import Game, Player

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


def test_what_was_decided_before_a_sequence_ends_still_teaches() -> None:
    player = Player(GAMES[0], seed=3)
    pair = player.pair
    for _ in range(3):
        pair.step()
    [(session_id, session)] = pair.sessions.items()
    pair.advance(session_id, 1, [session.tree.tokens[1]])
    pair.close(session_id)
    seen = pair.oracle._calibrations[True]._num_seen
    assert sum(seen) > 0
    first = int(pair.forest.tables.calibration[1]) * RANKS * BINS
    assert pair.forest.tables.counts[0][first : first + len(seen)].tolist() == seen


@pytest.mark.slow
@pytest.mark.parametrize("game", [*GAMES, *map(on_tensors, GAMES)], ids=lambda game: game.name)
def test_frames_at_full_length(game: Game) -> None:
    Player(game, seed=1).play(LONG)
