"""The best settings in the round model: each setting in turn, around the best found so far.

A candidate is a case of the bench, so that what was searched is what is run. Knows no engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from ssd.bench.cases import Case
from ssd.config import DEFAULT_LOOKAHEAD, Backup, GrowthPolicyName, Precision
from ssd.planning.followed_text import Shape
from ssd.planning.rolling import simulate
from ssd.planning.text import Text
from ssd.planning.times import Forward
from ssd.tuning.measure import Facts

_SD_LOOKAHEADS = (2, 3, 4, 5, 6, 8)
_CHOICES: dict[str, Sequence[Any]] = {
    "draft_width": (4, 8, 12, 16, 24, 32),
    "lookahead": (4, 6, 8, 12, 16),
    "growth": get_args(GrowthPolicyName),
    "draft_lookup": (0, 4, 8),
    "backup": get_args(Backup),
}
_WORTH = 1.005
"""A change must promise so much: below that the model cannot tell, and the defaults stay."""


@dataclass(frozen=True, slots=True)
class Candidate:
    case: Case
    rate: float
    """Tokens a second, predicted."""


def predicted_rate(facts: Facts, case: Case) -> float:
    spread = min(1.0, facts.spread)
    if case.mode == "ar":
        return 1 / (facts.target.seconds(1) * spread)
    precision = case.draft_precision or "model"
    times, texts = facts.times(precision), facts.drafts[precision].texts
    if case.mode == "sd":
        drafting = facts.drafts[precision].in_turns or times.draft.seconds(1)
        # Without a number the controller finds the best, plain decoding among them.
        lookaheads = range(DEFAULT_LOOKAHEAD + 1) if case.lookahead is None else (case.lookahead,)
        return max(_in_turns(texts, times.target, drafting, each) for each in lookaheads) / spread
    return simulate(texts, times, shape_of(case)).rate


def _in_turns(texts: Sequence[Text], target: Forward, drafting: float, lookahead: int) -> float:
    """Tokens a second of draft and target that take turns, with as many guesses in every round."""
    tokens = sum(map(len, texts)) / sum(len(text) / text.tokens_a_round(lookahead) for text in texts)
    return tokens / (lookahead * drafting + target.seconds(lookahead + 1))


def shape_of(case: Case) -> Shape:
    default = Shape()
    return Shape(
        lookahead=case.lookahead or default.lookahead,
        width=case.draft_width or default.width,
        children=case.draft_children or default.children,
        lookup=default.lookup if case.draft_lookup is None else case.draft_lookup,
        growth=case.growth or default.growth,
        backup=case.backup or default.backup,
    )


def search(facts: Facts) -> list[Candidate]:
    """All that was looked at, the best first; one of each mode and precision at least."""
    found = {case: Candidate(case, predicted_rate(facts, case)) for case in _simple_cases(facts.drafts)}
    for precision in facts.drafts:
        for candidate in _climb(facts, _default_ssd(precision)):
            found[candidate.case] = candidate
    return sorted(found.values(), key=lambda each: -each.rate)


def _default_ssd(precision: Precision) -> Case:
    return Case(
        mode="ssd",
        draft_precision=precision,
        draft_width=12,
        lookahead=8,
        growth="value",
        draft_lookup=4,
        backup="auto",
    )


def _simple_cases(precisions: Iterable[Precision]) -> Iterator[Case]:
    yield Case(mode="ar")
    for precision in precisions:
        yield Case(mode="sd", draft_precision=precision)
        for lookahead in _SD_LOOKAHEADS:
            yield Case(mode="sd", lookahead=lookahead, draft_precision=precision)


def _climb(facts: Facts, start: Case) -> Iterator[Candidate]:
    """Setting by setting, until a whole round of them brings nothing."""
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
    yield from (Candidate(case, seconds) for case, seconds in known.items())


def shortlist(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
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
    """In mode, precision or policy, or by a good step in width or lookahead."""
    if (one.mode, one.draft_precision, one.growth) != (other.mode, other.draft_precision, other.growth):
        return True
    ratios = [
        max(a, b) / min(a, b)
        for a, b in (
            (one.lookahead or 8, other.lookahead or 8),
            (one.draft_width or 12, other.draft_width or 12),
        )
    ]
    return max(ratios) >= 1.5
