"""Throws frames at `decode`, and what it lets through at mirrors and sessions.

    python -m tests.draft.protocol.fuzz_frames --inputs 1000000 [--seed 0]

A third is random bytes, a third honest frames that were spoilt, a third NODES that are well-formed and
lie. Nothing but FrameError, or messages, may come out of `decode`; no message may break a mirror; and none
of it may leave memory behind.
"""

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

from ssd.draft.protocol.codec import FrameError, decode, encode, fault_of_opening, faults_of_outcome
from ssd.draft.protocol.messages import AnyMessage, Nodes, Open, Outcome, unpack_ints
from tests.draft.client.one_mirror import ROW, OneMirror
from tests.draft.protocol.frames import VOCAB, each_kind, hostile_nodes, spoiled
from tests.draft.tree.oracle.session import Session

_LIFE = 300
"""Inputs after which a mirror is replaced, so that all states are seen young and old."""
_CHECKED = 16
"""A mirror is checked as a whole after every 16th frame that it has taken."""
_ENOUGH_GROWTH = 8 << 20


class Fuzz:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._frames = [encode([message]) for message in each_kind()]
        self._frames += [encode(each_kind()), encode([*each_kind(), *each_kind()])]
        self._mirror = OneMirror(1)
        self._session: Session | None = None
        self.outcomes: Counter[str] = Counter()

    def run(self, num_inputs: int) -> None:
        for index in range(num_inputs):
            if index % _LIFE == 0:
                self._mirror = OneMirror(1)
            frame = self._frame(index % 3)
            try:
                messages = decode(frame, vocab_size=VOCAB)
            except FrameError:
                self.outcomes["refused"] += 1
                continue
            self.outcomes["decoded"] += 1
            for message in messages:
                self._take(message)

    def _frame(self, kind: int) -> bytes:
        rng = self._rng
        if kind == 0:
            return rng.randbytes(rng.choice((0, 1, 2, 5, 20, 60, 200)))
        if kind == 1:
            return spoiled(rng.choice(self._frames), rng)
        mirror = self._mirror
        largest = max(0, int(mirror.table.largest[ROW]))
        nodes = hostile_nodes(
            rng,
            number=mirror.num_frames,
            n=mirror.n,
            length=mirror.lengths[-1],
            next_id=largest + 1,
            root=max(0, int(mirror.table.root[ROW])),
            known=[each[0] for each in mirror.content[-5:]] or [largest],
            is_out_of_sync=mirror.is_out_of_sync,
        )
        return encode([nodes])

    def _take(self, message: AnyMessage) -> None:
        self.outcomes[type(message).__name__.lower()] += 1
        match message:
            case Nodes():
                self._take_nodes(message)
            case Open():
                self._open(message)
            case Outcome() if self._session is not None and not faults_of_outcome(message, VOCAB):
                self._session.advance(int(message.columns().n[0]), unpack_ints(message.tokens).tolist())

    def _take_nodes(self, message: Nodes) -> None:
        rng, mirror = self._rng, self._mirror
        before = mirror.num_frames
        mirror.take(message)
        path, _chances = mirror.speculation(16)
        taken = mirror.num_frames > before
        self.outcomes["frames taken" if taken else "frames dropped"] += 1
        self.outcomes["torn"] += mirror.is_out_of_sync
        if rng.random() < 0.4:
            keep = rng.randint(0, len(path))
            mirror.advance([*path[:keep], rng.randrange(6)])
        if rng.randrange(_CHECKED) == 0:
            mirror.check()

    def _open(self, message: Open) -> None:
        if fault_of_opening(message, VOCAB):
            self.outcomes["openings declined"] += 1
            return
        try:
            self._session = Session(message, max_len=2048)
        except ValueError:
            self.outcomes["openings declined"] += 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    fuzz = Fuzz(options.seed)
    fuzz.run(min(20_000, options.inputs))  # Caches fill and pages are touched once.
    before = resident_bytes()
    fuzz.run(options.inputs)
    growth = resident_bytes() - before
    print(f"{dict(fuzz.outcomes)}; resident memory grew by {growth / 2**20:.2f} MiB")
    return int(growth > _ENOUGH_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
