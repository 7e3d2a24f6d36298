"""Autoregressive decoding: one forward, one token for each sequence.

Every other decoder must produce the tokens this one does.
"""

from collections.abc import Sequence

from ssd.decoding.decoder import Decided, DecodeRow, DraftContext, Speculation
from ssd.decoding.verification import verify
from ssd.runtime.runner import Runner


class AutoregressiveDecoder:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def is_drafting(self) -> bool:
        return False

    def propose(self, contexts: Sequence[DraftContext]) -> list[Speculation]:
        return [Speculation()] * len(contexts)

    def step(self, rows: Sequence[DecodeRow]) -> list[Decided]:
        return verify(self._runner, rows)

    def forget(self, seq_id: int) -> None:
        pass
