"""What one step decided of one sequence. A plain value."""

from collections.abc import Sequence as Tokens

import msgspec

from ssd.draft.policy import Round
from ssd.engine.outputs import Origin
from ssd.sampling import SampledToken


class Burst(msgspec.Struct, frozen=True):
    """The tokens, as far as they count."""

    tokens: Tokens[SampledToken]
    num_accepted: int
    num_drafted: int
    how: Round | None
    text: str | None
    """None: not made yet."""

    @property
    def origins(self) -> list[Origin]:
        accepted_from: Origin = "hit" if self.how is None or self.how.cause == "hit" else "backup"
        own: list[Origin] = ["target"] * (len(self.tokens) - self.num_accepted)
        return [accepted_from] * self.num_accepted + own
