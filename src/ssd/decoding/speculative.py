"""Speculative decoding (SD): draft and target take turns on the same hardware.

The honest baseline for decoding in which the draft works ahead.
"""

from collections.abc import Sequence

from ssd.decoding.decoder import Decided, DecodeRow, DraftContext, Speculation
from ssd.decoding.drafter import Drafter
from ssd.decoding.verification import verify
from ssd.runtime.runner import Runner


class SpeculativeDecoder:
    def __init__(self, target: Runner, drafter: Drafter) -> None:
        self._target = target
        self._drafter = drafter

    @property
    def is_drafting(self) -> bool:
        return True

    def propose(self, contexts: Sequence[DraftContext]) -> list[Speculation]:
        return self._drafter.propose(contexts)

    def step(self, rows: Sequence[DecodeRow]) -> list[Decided]:
        return verify(self._target, rows)

    def forget(self, seq_id: int) -> None:
        self._drafter.forget(seq_id)
