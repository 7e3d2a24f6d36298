"""Runs candidate cases on the engine in turns, and chooses one that is significantly faster.

Knows cases and rates, not where the cases come from.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.bench.statistics import Estimate, in_turn, joint_confidence, paired_ratio

_CLEARLY = 1.02
"""With too few prompts for an interval: required median speed-up, with no prompt slower."""


OnText = Callable[[], None]
"""Called after each measured text."""


def _unwatched() -> None:
    pass


@dataclass(frozen=True, slots=True)
class CaseRates:
    case: Case
    rates: Sequence[float]
    """Tokens per second, by prompt."""

    @property
    def rate(self) -> float:
        """Total tokens by total time; all texts have the same length."""
        return statistics.harmonic_mean(self.rates)

    def over(self, other: "CaseRates", *, among: int = 1) -> Estimate:
        """The median over prompts of the ratio of rates: drift affects both runs of a prompt alike.

        `among`: the number of comparisons whose intervals must hold together.
        """
        return paired_ratio(self.rates, other.rates, confidence=joint_confidence(among))


def run_in_turns(
    engines: CaseEngines,
    cases: Sequence[Case],
    prompts: Sequence[str],
    *,
    max_tokens: int,
    seed: int,
    on_text: OnText = _unwatched,
) -> list[CaseRates]:
    """Run every case on every prompt, in an order that changes with each prompt, after a warm-up."""
    engines.warm_up(cases, prompts[0])
    rates: dict[Case, list[float]] = {case: [] for case in cases}
    for place, prompt in enumerate(prompts):
        for case in in_turn(cases, place):
            (record,) = engines.run(case, [prompt], max_tokens=max_tokens, seed=seed + place)
            rates[case].append(record.rate)
            on_text()
    return [CaseRates(case, rates[case]) for case in cases]


def winner(measured: Sequence[CaseRates], baseline: CaseRates) -> CaseRates:
    """The fastest of those that are clearly faster than plain decoding; else plain decoding itself.

    Clearly: the whole interval is above 1, and the intervals of all of them hold together: a draft takes
    memory, and must not be chosen for a lucky prompt.
    """
    others = [each for each in measured if each is not baseline]
    clear = [each for each in others if _is_clear(each.over(baseline, among=len(others)), each, baseline)]
    return max(clear, key=lambda each: each.over(baseline).value, default=baseline)


def _is_clear(ratio: Estimate, one: CaseRates, baseline: CaseRates) -> bool:
    if ratio.low is not None:
        return ratio.low > 1
    is_never_slower = all(ours >= theirs for ours, theirs in zip(one.rates, baseline.rates, strict=True))
    return ratio.value > _CLEARLY and is_never_slower


def on_held_out(
    engines: CaseEngines,
    chosen: CaseRates,
    baseline: CaseRates,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    seed: int,
    on_text: OnText = _unwatched,
) -> Estimate | None:
    """The chosen case over plain decoding, on other prompts; None where that is what was chosen."""
    if chosen is baseline:
        return None
    both = [baseline.case, chosen.case]
    plain, ours = run_in_turns(engines, both, prompts, max_tokens=max_tokens, seed=seed, on_text=on_text)
    return ours.over(plain)
