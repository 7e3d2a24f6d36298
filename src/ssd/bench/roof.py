"""What bounds a draft that works ahead, from the bare forwards of a run and the draft's guesses at its texts.

Knows Forwards; no records. A roof is exceeded only where it was measured too low, so everything that lets a
round gain counts here as if it always came in time: verifications of the length that pays best, any of the
guesses that a tree holds, and runs that the earlier text foretells (docs/bench.md).
"""

from collections.abc import Sequence
from statistics import fmean, median

from ssd.bench.figures import Roof
from ssd.bench.manifest import CaseFacts
from ssd.bench.records import Forwards
from ssd.planning.times import line_through


def roof_of(forwards: Sequence[Forwards], facts: CaseFacts) -> Roof | None:
    """None: the draft's guesses at these texts were not looked at, or it has no width of its own."""
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
    """Tokens of a verification on average, with a draft that always has a whole speculation ready.

    `agrees`: of each token of a text, whether the draft guessed it.
    """
    place, rounds = 0, 0
    while place < len(agrees):
        run = 0
        while run < lookahead and place + run < len(agrees) and agrees[place + run]:
            run += 1
        place += run + 1
        rounds += 1
    return len(agrees) / rounds


def _foreseen(text: Forwards, form: str, facts: CaseFacts) -> list[bool]:
    """Of each token, whether a speculation may hold it: as a guess of the draft, or in a run."""
    ranks = text.ranks.get(form) or [0 if agrees else -1 for agrees in text.agreement[form]]
    found = [0 <= rank < max(1, facts.draft_guesses) for rank in ranks]
    for place, length in enumerate(text.runs):
        for ahead in range(min(length, facts.draft_lookup)):
            found[place + ahead] = True
    return found


def _tokens_a_step(text: Forwards, form: str, facts: CaseFacts) -> float:
    """A step of the draft goes one token further, and a run that it looked up further still."""
    place, steps, length = 0, 0, len(text.agreement[form])
    while place < length:
        run = text.runs[place] if text.runs else 0
        place += 1 + min(run, facts.draft_lookup)
        steps += 1
    return length / steps
