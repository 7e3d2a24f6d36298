"""A draft on a host: the real service and line, with a rule and a sleep for the model.

    python -m tests.network.draft tcp://10.77.0.2:7000 --keys FOLDER --step 0.002 --weights alice=4,bob=2

Prints a line once it listens, and ends as `ssd draft` does. With --says it says every so many seconds how it
goes: of each tenant its rows, its sequences, and in how many steps it would have had more; and of all, steps.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.flags import parser
from benchmarks.ruled import SLOTS, WIDTH, hello, scheduler_of, shape_of
from ssd.config.draft import weights_of
from ssd.draft.protocol.sockets import Keys, ZmqDraftSocket
from ssd.draft.server.scheduler import DraftScheduler
from ssd.draft.server.server import DraftServer
from ssd.processes.signals import Signals
from tests.draft.crowd import wants
from tests.network.programs import say
from tests.network.sleeping import SleepingDraft

FLAGS: dict[str, object] = {
    "address:": str,
    "keys": None,
    "step": 0.002,
    "name": "draft",
    "weights": None,
    "sequences": 64,
    "width": WIDTH,
    "slots": SLOTS,
    "chunk": 1024,
    "says": 0.0,
}


class Teller:
    """Says how it goes, between two turns of the service."""

    def __init__(self, scheduler: DraftScheduler, names: list[str], every: float) -> None:
        self._scheduler, self._names, self._every = scheduler, names, every
        self._due = time.monotonic()
        self._num_turns = 0
        self._wanting: Counter[str] = Counter()

    def note(self) -> None:
        tenants = self._scheduler.tenants
        self._num_turns += 1
        self._wanting.update(name for name in self._names if wants(tenants, name))
        if self._every and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            say(self._words())

    def _words(self) -> dict[str, Any]:
        tenants, session = self._scheduler.tenants, self._scheduler._sessions
        return {
            "at": time.monotonic(),
            "turns": self._num_turns,
            "rows": {name: tenants.num_had(name) for name in self._names},
            "wanting": {name: self._wanting[name] for name in self._names},
            "sequences": Counter(each.tenant for each in session.values()),
        }


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    signals = Signals()
    weights = weights_of(tuple(filter(None, (options.weights or "").split(","))))
    shape = shape_of(options.sequences, 8, width=options.width, slots=options.slots)
    scheduler = scheduler_of(
        SleepingDraft(options.step), prefill_chunk=options.chunk, shape=shape, weights=weights
    )
    link = ZmqDraftSocket(options.address, Keys(Path(options.keys)) if options.keys else None)
    service = DraftServer(scheduler, link, hello(options.name))
    say({"listens": options.address})
    teller = Teller(scheduler, list(weights), options.says)

    def is_over() -> bool:
        teller.note()
        return signals.have_come()

    service.run(is_over)
    link.close()


if __name__ == "__main__":
    main()
