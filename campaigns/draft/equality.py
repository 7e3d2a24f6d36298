"""The forest against today's scheduler, at full length: each configuration on arrays and on tensors.

    python -m campaigns.draft.equality --rounds 1000 --record docs/records/forest.jsonl

Frames must be the same: ids, parents, tokens, numbers, roots, and log-probabilities within 2e-6. What the
record holds already is not run again.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from campaigns.record import Record
from tests.draft.tree.games import GAMES, on_tensors
from tests.draft.tree.pair import without_fading
from tests.draft.tree.play import Game, Player


def played(game: Game, rounds: int, seed: int) -> dict[str, Any]:
    player, started = Player(game, seed), time.process_time()
    found: dict[str, Any] = {"equal": True}
    try:
        player.play(rounds)
    except AssertionError as error:
        found = {"equal": False, "why": str(error)[:300]}
    seconds = round(time.process_time() - started, 1)
    pair = player.pair
    return found | {
        **dict(player.counts),
        "rows": pair.num_rows,
        "nodes": pair.num_nodes,
        "worst": pair.worst,
        "seconds": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--only", default="", help="configurations with this word in their name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = Record(options.record, {"rounds": options.rounds, "seed": options.seed})
    games = [game for each in GAMES for game in (each, on_tensors(each)) if options.only in game.name]
    unequal = 0
    with without_fading():
        for game in games:
            found = record.find(game.name)
            if found is None:
                found = played(game, options.rounds, options.seed)
                record.add(game.name, found)
            unequal += not found["equal"]
            sys.stdout.write(f"{game.name}: {found}\n")
    return int(unequal > 0)


if __name__ == "__main__":
    sys.exit(main())
