"""A draft service behind a real socket, in a thread of this process: the rule of benchmarks/ruled.py drafts.

Knows the service, its link and clients of it; not what is expected of them.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.ruled import RuledModel, hello, outcome, prompt_of, scheduler_of, shape_of
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import AddressSource, FixedSources
from ssd.draft.client.mirrors import Knowledge
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.messages import Sampling
from ssd.draft.protocol.sockets import DraftSocket, Keys, ZmqDraftSocket
from ssd.draft.server.server import DraftServer

LOOKAHEAD = 4
PATIENCE = 60.0
"""Seconds: a guard against hangs, far more than anything here takes."""


class Served:
    def __init__(
        self,
        address: str,
        keys: Keys | None = None,
        *,
        sequences: int = 64,
        wrap: Callable[[DraftSocket], DraftSocket] = lambda link: link,
    ) -> None:
        """`wrap`: changes what the service hears and says."""
        self.link = ZmqDraftSocket(address, keys)
        shape = shape_of(sequences, 2 * LOOKAHEAD, width=32, slots=128)
        scheduler = scheduler_of(RuledModel(), prefill_chunk=512, shape=shape)
        self.service = DraftServer(scheduler, wrap(self.link), hello("draft"))
        self.address = address
        self._is_over = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="draft-under-test")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.service.run(self._is_over.is_set)
            self.service.check_integrity()
        except BaseException as error:
            self.failure = error

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.link.close()
        if self.failure is not None:
            raise self.failure


def speculator_at(*addresses: str, keys: Keys | None = None, name: str = "target") -> Speculator:
    """Of a host whose drafts are all there."""
    sources = [AddressSource(each, hello(name), timeout=PATIENCE, keys=keys) for each in addresses]
    speculator = Speculator(DraftClient(FixedSources(*sources), lookahead=LOOKAHEAD), lookahead=LOOKAHEAD)
    speculator.start(timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while len(speculator.client.pool.ready) < len(addresses):
        assert time.monotonic() < deadline, "a draft does not greet"
        time.sleep(0.01)
    return speculator


class Honest:
    """Sequences that decode by the rule, whatever others do."""

    def __init__(self, speculator: Speculator, keys: Sequence[str] = ("honest",)) -> None:
        self._client = speculator.client
        self._last: dict[str, int] = {}
        for place, key in enumerate(keys):
            prompt = prompt_of(place)
            speculator.begin(key, prompt, (), Sampling(seed=1), 3000)
            self._last[key] = prompt[-1]

    def rounds_until_hits(self, count: int = 1) -> None:
        """Rounds until each sequence has had so many hits since this call; a slow draft is waited for."""
        left, deadline = dict.fromkeys(self._last, count), time.monotonic() + PATIENCE
        while any(value > 0 for value in left.values()):
            assert time.monotonic() < deadline, "the draft says nothing that helps"
            self._wait()
            keys = list(self._last)
            paths = self._client.paths(keys, 1)
            said = [outcome(self._last[key], path.tokens) for key, path in zip(keys, paths, strict=True)]
            known = self._client.outcomes(list(zip(keys, said, strict=True)))
            for key, tokens, knowledge in zip(keys, said, known, strict=True):
                self._last[key] = tokens[-1]
                left[key] -= knowledge is Knowledge.HIT

    def _wait(self) -> None:
        """Until the draft is further ahead of each sequence than a round goes, or has had seconds to be."""
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            self._client.pool.read(0.005)
            if all(len(path.tokens) > 2 for path in self._client.paths(list(self._last), LOOKAHEAD)):
                return

    def epochs(self) -> list[int]:
        """The same as before: none was opened again."""
        client = self._client
        return [int(client._mirrors.epoch[client._sessions[key].seq]) for key in self._last]


@contextmanager
def undisturbed(speculator: Speculator, honest: Honest) -> Iterator[None]:
    """What happens inside costs the others nothing: no connection, no sequence of theirs, no hit."""
    stats, epochs = speculator.client.stats, honest.epochs()
    before = (stats.num_connects, stats.num_losses, stats.num_resyncs, stats.num_moved)
    yield
    honest.rounds_until_hits()
    assert (stats.num_connects, stats.num_losses, stats.num_resyncs, stats.num_moved) == before
    assert honest.epochs() == epochs, "a sequence was opened again"
