"""Candidates on the real engine, in turns, prompt by prompt: who is fastest.

Knows cases and rates; not where the cases came from.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines

_CLEARLY = 1.02
"""Speculation must be so much faster than plain decoding: it takes another model's memory, at least."""


@dataclass(frozen=True, slots=True)
class Measured:
    case: Case
    rates: Sequence[float]
    """Tokens a second, by prompt."""

    @property
    def rate(self) -> float:
        """Over all prompts, each of the same length: total tokens by total time."""
        return statistics.harmonic_mean(self.rates)

    def over(self, other: "Measured") -> float:
        """How many times as fast, as the median over prompts: drift hits both of a prompt alike."""
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=True))


def run_in_turns(
    engines: CaseEngines,
    cases: Sequence[Case],
    prompts: Sequence[str],
    *,
    max_tokens: int,
    seed: int,
) -> list[Measured]:
    """Every case on every prompt; the order of cases turns with each prompt. Warm-up is outside the clock."""
    engines.warm_up(cases, prompts[0])
    rates: dict[Case, list[float]] = {case: [] for case in cases}
    for place, prompt in enumerate(prompts):
        turn = place % len(cases)
        for case in [*cases[turn:], *cases[:turn]]:
            (record,) = engines.run(case, [prompt], max_tokens=max_tokens, seed=seed + place)
            rates[case].append(record.rate)
    return [Measured(case, rates[case]) for case in cases]


def winner(measured: Sequence[Measured], baseline: Measured) -> Measured:
    """The fastest beside plain decoding; plain decoding itself where nothing is clearly faster."""
    best = max(measured, key=lambda each: each.over(baseline))
    return best if best.over(baseline) > _CLEARLY else baseline
