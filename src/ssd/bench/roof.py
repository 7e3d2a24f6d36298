"""The roof: an upper bound on speed with a draft that works ahead, from bare forwards and draft guesses.

Knows Forwards. Does not know records. To be an upper bound, it assumes that everything useful arrives in
time: verifications of the best length, all guesses of a tree, and runs found by n-gram lookup
(docs/bench.md).
"""

from collections.abc import Sequence
from statistics import fmean, median

from ssd.bench.figures import Roof
from ssd.bench.manifest import CaseFacts
from ssd.bench.records import Forwards
from ssd.planning.times import line_through


def roof_of(forwards: Sequence[Forwards], facts: CaseFacts) -> Roof | None:
    """None if the case has no draft, or its agreement with these texts was not measured."""
    form = facts.draft_form
    known = [each for each in forwards if form in each.agreement]
    if form is None or not known:
        return None
    rows = facts.lookahead + 1
    plain, longest = (median(each.target_seconds[count] for each in forwards) for count in (1, rows))
    verify = line_through(1, plain, rows, longest)
    foreseen = [_foreseen(each, form, facts) for each in known]
    gains = {
        count: fmean(tokens_a_round(each, count - 1) for each in foreseen) for count in range(1, rows + 1)
    }
    best = max(gains, key=lambda count: gains[count] / verify.seconds(count))
    return Roof(
        plain_seconds=plain,
        tokens_a_round=gains[best],
        verify_seconds=verify.seconds(best),
        verify_rows=best,
        tokens_a_step=fmean(_tokens_a_step(each, form, facts) for each in known),
        draft_seconds=median(each.draft_seconds[form][facts.draft_width] for each in forwards),
        draft_rows=facts.draft_width,
    )


def tokens_a_round(agrees: Sequence[bool], lookahead: int) -> float:
    """Mean number of tokens per verification if the draft always has a complete speculation ready.

    `agrees`: for each token of a text, whether the draft guessed it.
    """
    index, rounds = 0, 0
    while index < len(agrees):
        run = 0
        while run < lookahead and index + run < len(agrees) and agrees[index + run]:
            run += 1
        index += run + 1
        rounds += 1
    return len(agrees) / rounds


def _foreseen(text: Forwards, form: str, facts: CaseFacts) -> list[bool]:
    """For each token, whether a speculation may contain it, as a guess of the draft or in a run."""
    ranks = text.ranks.get(form) or [0 if agrees else -1 for agrees in text.agreement[form]]
    foreseen = [0 <= rank < max(1, facts.draft_guesses) for rank in ranks]
    for index, length in enumerate(text.runs):
        for ahead in range(min(length, facts.draft_lookup)):
            foreseen[index + ahead] = True
    return foreseen


def _tokens_a_step(text: Forwards, form: str, facts: CaseFacts) -> float:
    """Mean number of tokens that a draft step advances: one, and the run that it looked up."""
    index, steps, length = 0, 0, len(text.agreement[form])
    while index < length:
        run = text.runs[index] if text.runs else 0
        index += 1 + min(run, facts.draft_lookup)
        steps += 1
    return length / steps
