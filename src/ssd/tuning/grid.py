"""A grid of settings, measured: the check of the tuner. Slow, and needed by nobody who trusts it.

Drafts that work ahead are processes with a model each, so only a few points are there at a time, and the
tuned settings run beside every group: points of different groups compare by their ratio to these. The best of
many noisy points is also the luckiest, so the best few run a second time, and that is what counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.bench.statistics import Estimate
from ssd.config import GrowthPolicyName
from ssd.tuning.confirm import run_in_turns

WIDTHS = (4, 8, 12, 24)
LOOKAHEADS = (4, 8, 16)
POLICIES: tuple[GrowthPolicyName, ...] = ("value", "geometric")
_GROUP = 3
AGAIN = _GROUP
"""So many of the best run a second time."""


@dataclass(frozen=True, slots=True)
class Point:
    case: Case
    ratio: Estimate
    """Its speed as a multiple of the tuned settings'."""


def grid_cases(tuned: Case) -> list[Case]:
    """Width × lookahead × policy, with the tuned precision."""
    return [
        Case(
            mode="ssd",
            draft_precision=tuned.draft_precision,
            temperature=tuned.temperature,
            draft_width=width,
            lookahead=lookahead,
            growth=growth,
        )
        for width, lookahead, growth in product(WIDTHS, LOOKAHEADS, POLICIES)
    ]


def run_grid(
    engines: CaseEngines,
    tuned: Case,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    seed: int,
    say: Callable[[str], None],
    cases: Sequence[Case] | None = None,
) -> list[Point]:
    """The best first."""
    points: list[Point] = []
    # A draft with settings of the grid's own may be the tuned one: it still needs a name of its own.
    apart = replace(tuned, draft_children=tuned.draft_children or 4)
    for group in _groups(cases or grid_cases(tuned)):
        say(", ".join(case.name for case in group))
        measured = run_in_turns(engines, [apart, *group], prompts, max_tokens=max_tokens, seed=seed)
        points += [Point(each.case, each.over(measured[0])) for each in measured[1:]]
        engines.close()
    return sorted(points, key=lambda point: -point.ratio.value)


def _groups(cases: Sequence[Case]) -> list[Sequence[Case]]:
    return [cases[start : start + _GROUP] for start in range(0, len(cases), _GROUP)]


def distance(points: Sequence[Point]) -> float:
    """How far the tuned settings are behind the best point; 0 where they are ahead of all."""
    return max(0.0, 1 - 1 / points[0].ratio.value)
