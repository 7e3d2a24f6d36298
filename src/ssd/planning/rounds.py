"""What a round yields and takes, in closed form: plain decoding, SD, and their roofs.

A drafted token is accepted with one chance, independently of the others. The rolling tree of this engine has
no closed form: `rolling.py` runs it; the roof here bounds it. Knows seconds and chances, no hardware.
"""

from dataclasses import dataclass

from ssd.planning.text import Text
from ssd.planning.times import PairTimes

MAX_LOOKAHEAD = 16


def tokens_a_round(acceptance: float, lookahead: int) -> float:
    """Accepted tokens and the target's own: 1 + a + a² + … + a^K."""
    return float(sum(acceptance**k for k in range(lookahead + 1)))


def ar_rate(times: PairTimes, *, batch: int = 1) -> float:
    """Tokens a second of the whole batch, as everywhere here."""
    return batch / (times.target.seconds(batch) + times.host)


def sd_seconds(times: PairTimes, lookahead: int, *, batch: int = 1) -> float:
    """A round of SD: the draft's steps, then the verification."""
    drafting = lookahead * times.draft.seconds(batch)
    return drafting + times.target.seconds(batch * (lookahead + 1)) + times.host


def sd_rate(times: PairTimes, acceptance: float, lookahead: int, *, batch: int = 1) -> float:
    return batch * tokens_a_round(acceptance, lookahead) / sd_seconds(times, lookahead, batch=batch)


@dataclass(frozen=True, slots=True)
class Best:
    rate: float
    lookahead: int


def best_sd(times: PairTimes, acceptance: float, *, batch: int = 1) -> Best:
    found = [Best(sd_rate(times, acceptance, k, batch=batch), k) for k in range(1, MAX_LOOKAHEAD + 1)]
    return max(found, key=lambda each: each.rate)


@dataclass(frozen=True, slots=True)
class Roof:
    """SSD is never faster than either; a text that repeats itself (runs) lifts the second a little."""

    by_target: float
    by_draft: float

    @property
    def rate(self) -> float:
        return min(self.by_target, self.by_draft)


def roof(times: PairTimes, text: Text, lookahead: int, width: int, *, batch: int = 1) -> Roof:
    """min(E∞/T_v, 1/T_d): a draft decodes every accepted token in sequence, however it works ahead."""
    tokens = text.tokens_a_round(lookahead)
    # Verified are as many rows as pay; the roof grants the cheapest forward that could yield these tokens.
    verifying = times.target.seconds(batch) * times.target_beside
    drafting = times.draft.seconds(max(width, batch)) * times.draft_beside
    return Roof(batch * tokens / verifying, batch / drafting)
