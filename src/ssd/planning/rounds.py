"""Closed-form model of a round: tokens and seconds of plain decoding, SD and SSD, and SSD's upper bound.

A drafted token is accepted with one chance, independently of the others. In SSD the draft prepares the next
speculation while the target verifies: K + 1 steps, one of which reads the last outcome (arXiv:2603.03251).
Knows seconds and chances, no hardware.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ssd.config import MAX_LOOKAHEAD, MAX_WIDTH
from ssd.planning.times import PairTimes

FAN_OUT = 3
"""Alternatives that a draft prepares for at each token of a speculation, besides its first guess."""
_DECAY = 0.5
"""Probability of each further guess relative to the one before."""


@dataclass(frozen=True, slots=True)
class Pair:
    """How well a draft guesses its target's tokens."""

    acceptance: float
    """Probability that the first guess is right."""
    coverage: float
    """Probability that one of the next three is right if the first one is wrong."""

    def __post_init__(self) -> None:
        for name, rate in (("acceptance", self.acceptance), ("coverage", self.coverage)):
            if not 0 <= rate <= 1:
                raise ValueError(f"{name}={rate}: a share, from 0 to 1")

    def coverage_of(self, fan_out: float) -> float:
        """The chance that one of `fan_out` guesses beside the first is right; at most FAN_OUT count."""
        share: float = (1 - _DECAY ** min(fan_out, FAN_OUT)) / (1 - _DECAY**FAN_OUT)
        return self.coverage * share


@dataclass(frozen=True, slots=True)
class Best:
    rate: float
    lookahead: int


def tokens_a_round(acceptance: float, lookahead: int) -> float:
    """Mean tokens per round, including the target's own: 1 + a + a² + … + a^K."""
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


def best_sd(times: PairTimes, acceptance: float, *, batch: int = 1) -> Best:
    return _best(Best(sd_rate(times, acceptance, k, batch=batch), k) for k in range(1, MAX_LOOKAHEAD + 1))


def hit_rate(acceptance: float, coverage: float, lookahead: int) -> float:
    """How often an outcome is prepared for; `coverage`: how often a rejected token's successor is."""
    all_accepted = acceptance**lookahead
    # After a whole speculation the next token may be the draft's first guess too.
    return (1 - all_accepted) * coverage + all_accepted * (acceptance + (1 - acceptance) * coverage)


def ssd_seconds(times: PairTimes, lookahead: int, *, width: int, batch: int = 1) -> float:
    """A round of SSD after a hit: the verification, or the draft's steps where these take longer."""
    verifying = times.target.seconds(batch * (lookahead + 1)) * times.target_beside
    preparing = (lookahead + 1) * times.draft.seconds(width) * times.draft_beside
    return max(verifying, preparing) + times.host


def miss_seconds(times: PairTimes, lookahead: int, *, batch: int = 1) -> float:
    """What a miss adds to a round that waits for another speculation."""
    return lookahead * times.draft.seconds(batch) * times.draft_beside


def ssd_rate(
    times: PairTimes, tokens: float, hits: float, lookahead: int, *, width: int, batch: int = 1
) -> float:
    """`tokens`: of a round with a whole speculation; `hits`: the share of outcomes prepared for.

    After a miss the batch waits for another speculation, or the sequence goes on with one token: the engine
    does what is faster.
    """
    seconds = ssd_seconds(times, lookahead, width=width, batch=batch)
    waiting = tokens / (seconds + (1 - hits**batch) * miss_seconds(times, lookahead, batch=batch))
    going_on = (hits * tokens + 1 - hits) / seconds
    return batch * max(waiting, going_on)


def best_ssd(times: PairTimes, pair: Pair, *, batch: int = 1) -> Best:
    """A draft step has at most MAX_WIDTH rows: where a batch needs more, each sequence gets fewer guesses."""

    def rate(lookahead: int) -> float:
        branches = (lookahead + 1) * batch
        width = max(batch, min(FAN_OUT * branches, MAX_WIDTH))
        hits = hit_rate(pair.acceptance, pair.coverage_of(width / branches), lookahead)
        tokens = tokens_a_round(pair.acceptance, lookahead)
        return ssd_rate(times, tokens, hits, lookahead, width=width, batch=batch)

    return _best(Best(rate(k), k) for k in range(1, MAX_LOOKAHEAD + 1))


def ssd_roof(times: PairTimes, acceptance: float, *, batch: int = 1) -> float:
    """min(E∞/T_v, 1/T_d): every outcome prepared for, and a draft that decodes every accepted token."""
    tokens = tokens_a_round(acceptance, MAX_LOOKAHEAD)
    verifying = times.target.seconds(batch) * times.target_beside
    drafting = times.draft.seconds(batch) * times.draft_beside
    return batch * min(tokens / verifying, 1 / drafting)


def _best(found: Iterable[Best]) -> Best:
    return max(found, key=lambda each: each.rate)
