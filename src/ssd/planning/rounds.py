"""What a round yields and takes, in closed form: plain decoding, SD, the published SSD, and their roofs.

A drafted token is accepted with one chance, independently of the others. The rolling tree of this engine has
no closed form: `rolling.py` runs it; the roof here bounds it. Knows seconds and chances, no hardware.

The published SSD (Kumar, Dao, May 2026) works in rounds: during a verification the draft prepares whole
speculations for the outcomes it expects, in one step to take the last outcome in and one for each token;
on a hit the next verification starts when both are done, on a miss after another whole speculation.
"""

from dataclasses import dataclass

from ssd.planning.text import Text
from ssd.planning.times import PairTimes

MAX_LOOKAHEAD = 16


def tokens_a_round(acceptance: float, lookahead: int) -> float:
    """Accepted tokens and the target's own: 1 + a + a² + … + a^K."""
    return float(sum(acceptance**k for k in range(lookahead + 1)))


def acceptance_for(tokens: float, lookahead: int) -> float:
    """The acceptance at which a round yields so many tokens: `tokens_a_round`, backwards."""
    if not 1 <= tokens <= lookahead + 1:
        raise ValueError(
            f"a round of lookahead {lookahead} yields 1 to {lookahead + 1} tokens, not {tokens:.2f}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_a_round(middle, lookahead) < tokens else (low, middle)
    return (low + high) / 2


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


def published_hit_rate(acceptance: float, coverage: float, lookahead: int) -> float:
    """How often the outcome is prepared for; `coverage`: how often a rejection's token is."""
    all_accepted = acceptance**lookahead
    # After a whole speculation the next token may be the draft's first guess too.
    return (1 - all_accepted) * coverage + all_accepted * (acceptance + (1 - acceptance) * coverage)


def published_seconds(
    times: PairTimes, lookahead: int, hit_rate: float, *, fan_out: int = 3, batch: int = 1
) -> float:
    """A round of the published SSD, on average; a batch waits for a sequence that misses."""
    width = fan_out * (lookahead + 1) * batch
    verifying = times.target.seconds(batch * (lookahead + 1)) * times.target_beside
    preparing = (lookahead + 1) * times.draft.seconds(width) * times.draft_beside
    again = lookahead * times.draft.seconds(batch) * times.draft_beside
    return max(verifying, preparing) + times.host + (1 - hit_rate**batch) * again


def published_rate(
    times: PairTimes, acceptance: float, lookahead: int, hit_rate: float, *, fan_out: int = 3, batch: int = 1
) -> float:
    seconds = published_seconds(times, lookahead, hit_rate, fan_out=fan_out, batch=batch)
    return batch * tokens_a_round(acceptance, lookahead) / seconds


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
