"""What one step decided of one sequence. A plain value."""

from collections.abc import Sequence as Tokens

import msgspec

from ssd.decoding.rows import VerifiedTree
from ssd.draft.client.speculator import Round
from ssd.engine.outputs import Origin, SpeculationStats
from ssd.sampling import SampledToken


class Burst(msgspec.Struct, frozen=True):
    """The tokens, as far as they count."""

    tokens: Tokens[SampledToken]
    num_accepted: int
    num_drafted: int
    how: Round | None
    text: str | None
    """None: not made yet."""
    tree: VerifiedTree | None = None
    """What was verified, if it had several paths."""

    def note_in(self, stats: SpeculationStats) -> None:
        stats.note(
            drafted=self.num_drafted,
            accepted=self.num_accepted,
            how=self.how,
            is_tree=self.tree is not None,
        )

    @property
    def origins(self) -> list[Origin]:
        accepted_from: Origin = "hit" if self.how is None or self.how.cause == "hit" else "backup"
        own: list[Origin] = ["target"] * (len(self.tokens) - self.num_accepted)
        return [accepted_from] * self.num_accepted + own
