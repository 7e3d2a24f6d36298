"""A rank that follows, as a program: loads its share, then does what the leader says until that is gone.

    python -m ssd.runtime.ranks.follower

Its task is the first line of its lifeline, standard input. What takes long to import comes after that: a
leader may be killed at any moment.
"""

import logging
import sys
from typing import TYPE_CHECKING

import msgspec

from ssd.processes.lifeline import end_with_parent
from ssd.runtime.ranks.task import Task

if TYPE_CHECKING:
    from ssd.runtime.loading import LoadedModel
    from ssd.runtime.ranks.group import Ranks


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    end_with_parent(lambda: None, grace=1.0)
    logging.basicConfig(level=logging.WARNING, format="draft rank: %(message)s")
    _take_part(task)


def _take_part(task: Task) -> None:
    import torch

    from ssd.runtime.loading import load_model
    from ssd.runtime.ranks.group import RankLost, Ranks, following_store

    try:
        store = following_store(task.port, task.world_size)
        ranks = Ranks(task.rank, task.world_size, store, torch.device(task.runner.device))
        follow(ranks, load_model(task.runner, ranks=ranks))
    except RankLost:
        # The leader says what happened, or is gone itself.
        sys.exit(1)


def follow(ranks: "Ranks", loaded: "LoadedModel") -> None:
    import torch

    from ssd.runtime.ranks.wire import Order, batch_heard, heard

    while True:
        order, parts = heard(ranks.hear())
        if order == Order.MOVE:
            places = (torch.from_numpy(each.copy()).to(loaded.pool.shape.device) for each in parts)
            loaded.pool.move(*places)
        else:
            loaded.runner.launch(batch_heard(parts), lambda logits: logits)


if __name__ == "__main__":
    main()
