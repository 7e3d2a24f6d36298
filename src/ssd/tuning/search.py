"""Searches for the best settings in the closed-form model, by coordinate ascent.

A candidate is a case of the bench, so that what was searched is what is run. Knows no engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ssd.bench.cases import Case
from ssd.config import DEFAULT_LOOKAHEAD, DEFAULT_WIDTH, Precision
from ssd.planning.rounds import FAN_OUT, hit_rate, ssd_rate
from ssd.planning.times import Forward, PairTimes
from ssd.tuning.measure import Facts
from ssd.tuning.texts import Guesses

_SD_LOOKAHEADS = (2, 3, 4, 5, 6, 8)
_CHOICES: dict[str, Sequence[Any]] = {
    "draft_width": (4, 8, 12, 16, 24, 32),
    "lookahead": (4, 6, 8, 12, 16),
}
_WORTH = 1.005
"""Required predicted gain of a change: smaller gains are within the model's error."""


@dataclass(frozen=True, slots=True)
class PredictedCase:
    case: Case
    rate: float
    """Predicted tokens per second."""


def predicted_rate(facts: Facts, case: Case) -> float:
    spread = min(1.0, facts.spread)
    if case.mode == "ar":
        return 1 / (facts.target.seconds(1) * spread)
    precision = case.draft_precision or "model"
    times, guesses = facts.times(precision), facts.drafts[precision].guesses
    if case.mode == "sd":
        drafting = facts.drafts[precision].in_turns or times.draft.seconds(1)
        # Without a number the controller finds the best, plain decoding among them.
        lookaheads = range(DEFAULT_LOOKAHEAD + 1) if case.lookahead is None else (case.lookahead,)
        return max(_in_turns(guesses, times.target, drafting, each) for each in lookaheads) / spread
    width, most = case.draft_width or DEFAULT_WIDTH, case.lookahead or DEFAULT_LOOKAHEAD
    # The controller verifies fewer guesses where that pays.
    return max(_ahead(guesses, times, width, each) for each in range(1, most + 1))


def _in_turns(guesses: Guesses, target: Forward, drafting: float, lookahead: int) -> float:
    """Tokens a second of draft and target that take turns, with as many guesses in every round."""
    tokens = guesses.tokens_a_round(lookahead)
    return tokens / (lookahead * drafting + target.seconds(lookahead + 1))


def _ahead(guesses: Guesses, times: PairTimes, width: int, lookahead: int) -> float:
    """Tokens a second of a draft that works ahead, with as many guesses in every round."""
    coverage = guesses.coverage(min(FAN_OUT, width / (lookahead + 1)))
    hits = hit_rate(guesses.acceptance, coverage, lookahead)
    return ssd_rate(times, guesses.tokens_a_round(lookahead), hits, lookahead, width=width)


def search(facts: Facts) -> list[PredictedCase]:
    """All evaluated cases, best first, with at least one of each mode and precision."""
    found = {case: PredictedCase(case, predicted_rate(facts, case)) for case in _simple_cases(facts.drafts)}
    for precision in facts.drafts:
        for candidate in _climb(facts, _default_ssd(precision)):
            found[candidate.case] = candidate
    return sorted(found.values(), key=lambda each: -each.rate)


def _default_ssd(precision: Precision) -> Case:
    return Case(mode="ssd", draft_precision=precision, draft_width=DEFAULT_WIDTH, lookahead=DEFAULT_LOOKAHEAD)


def _simple_cases(precisions: Iterable[Precision]) -> Iterator[Case]:
    yield Case(mode="ar")
    for precision in precisions:
        yield Case(mode="sd", draft_precision=precision)
        for lookahead in _SD_LOOKAHEADS:
            yield Case(mode="sd", lookahead=lookahead, draft_precision=precision)


def _climb(facts: Facts, start: Case) -> Iterator[PredictedCase]:
    """Improve one setting after another until no change helps."""
    known: dict[Case, float] = {}

    def rate(case: Case) -> float:
        if case not in known:
            known[case] = predicted_rate(facts, case)
        return known[case]

    best, is_better = start, True
    while is_better:
        is_better = False
        for name, choices in _CHOICES.items():
            tried = max((replace(best, **{name: choice}) for choice in choices), key=rate)
            if rate(tried) > _WORTH * rate(best):
                best, is_better = tried, True
    yield from (PredictedCase(case, seconds) for case, seconds in known.items())


def shortlist(candidates: Sequence[PredictedCase], count: int) -> list[PredictedCase]:
    """The best few that are worth running: unlike each other, the best of each mode with a draft among them.

    Near a maximum many settings promise the same; running them would only measure noise.
    """
    drafting = [each for each in candidates if each.case.mode != "ar"]
    chosen = [next(each for each in drafting if each.case.mode == mode) for mode in ("ssd", "sd")][:count]
    for each in drafting:
        if len(chosen) >= count:
            break
        if all(_differs(each.case, other.case) for other in chosen):
            chosen.append(each)
    return chosen


def _differs(one: Case, other: Case) -> bool:
    """In mode or precision, or by a good step in width or lookahead."""
    if (one.mode, one.draft_precision) != (other.mode, other.draft_precision):
        return True
    ratios = [
        max(a, b) / min(a, b)
        for a, b in (
            (one.lookahead or DEFAULT_LOOKAHEAD, other.lookahead or DEFAULT_LOOKAHEAD),
            (one.draft_width or DEFAULT_WIDTH, other.draft_width or DEFAULT_WIDTH),
        )
    ]
    return max(ratios) >= 1.5
