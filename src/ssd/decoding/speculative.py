"""Speculative decoding (SD): draft and target take turns on the same hardware.

The honest baseline for decoding in which the draft works ahead.
"""

import time
from collections.abc import Sequence

from ssd.decoding.autoregressive import AutoregressiveDecoder
from ssd.decoding.decoder import DraftContext, DraftStep, Speculation
from ssd.decoding.drafter import Drafter
from ssd.runtime.runner import Runner


class SpeculativeDecoder(AutoregressiveDecoder):
    is_drafting = True

    def __init__(self, target: Runner, drafter: Drafter) -> None:
        super().__init__(target)
        self._drafter = drafter
        self._draft_steps: list[DraftStep] = []

    @property
    def is_async(self) -> bool:
        """The draft's forwards come before the target's next one: text would wait for all of them."""
        return False

    def propose(self, contexts: Sequence[DraftContext]) -> list[Speculation]:
        started = time.monotonic()
        proposed = self._drafter.propose(contexts)
        self._draft_steps = [DraftStep(started, time.monotonic(), len(contexts))] if contexts else []
        return proposed

    def forget(self, seq_id: int) -> None:
        self._drafter.forget(seq_id)

    def draft_steps(self) -> list[DraftStep]:
        return self._draft_steps
