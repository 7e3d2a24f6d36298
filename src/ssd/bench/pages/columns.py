"""The table of figures: its columns, what each means, and how it is written. For HTML and Markdown alike."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssd.bench.figures import Figures
from ssd.bench.statistics import Estimate

NOTHING = "–"


def number(value: float) -> str:
    """As many digits as say something."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    meaning: str
    cell: Callable[[Figures], str]


def _estimate(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return number(found.value)
    return f"{number(found.value)} ({number(found.low)}–{number(found.high)})"


def _maybe(value: float | None, form: str = ".2f") -> str:
    return NOTHING if value is None else f"{value:{form}}"


def _shares(row: Figures) -> str:
    shares = (row.shares.verifying, row.shares.drafting, row.shares.waiting, row.shares.host)
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def _first_token(row: Figures) -> str:
    return f"{1e3 * row.first_token.value:.0f}"


def _milliseconds(row: Figures) -> str:
    draft = "" if row.draft_milliseconds is None else f" / {number(row.draft_milliseconds)}"
    return number(row.verify_milliseconds) + draft


def _accepted(row: Figures) -> str:
    return NOTHING if row.case.mode == "ar" else f"{row.accepted_per_round:.2f}"


def _roof(row: Figures) -> str:
    return NOTHING if row.roof is None else number(row.roof.rate)


_RATE = "1 / time per output token: median over prompts, 95 % interval"
_OVER_AR = "rate over plain decoding's on the target's own devices, prompt by prompt: median, 95 % interval"
_OVER_WIDE = "the same over plain decoding on the draft's cores as well"
_OVER_SD = "over the fastest sd case; of several, chosen by every other prompt, and compared by the rest"
_RAN = "a verification / a step of a draft that works ahead, as they ran beside each other"
_FLOP = "tokens per 10⁹ multiplications and additions of target and draft, prompts included"
SPEED = (
    Column("tok/s a user", _RATE, lambda row: _estimate(row.rate)),
    Column("× ar", _OVER_AR, lambda row: str(row.over_ar or NOTHING)),
    Column("× ar+allcores", _OVER_WIDE, lambda row: str(row.over_wide_ar or NOTHING)),
    Column("× best sd", _OVER_SD, lambda row: str(row.over_sd or NOTHING)),
    Column("ms/token", "time per output token: median", lambda row: number(row.milliseconds_per_token.value)),
    Column("first token, ms", "from request to first token: median", _first_token),
    Column("output tok/s", "all texts over wall time, prompts included", lambda row: number(row.output_rate)),
    Column("differ", "texts that are not plain decoding's, token for token", lambda row: str(row.differing)),
)
DRAFTING = (
    Column("accepted a round", "drafted tokens accepted in one verification", _accepted),
    Column("hits", "rounds whose outcome the draft had foreseen", lambda row: _maybe(row.hit_rate)),
    Column("late", "misses: token foreseen, what follows it not yet", lambda row: _maybe(row.late_rate)),
    Column("unknown", "misses: token not foreseen", lambda row: _maybe(row.unknown_rate)),
    Column("verify / draft / wait / host %", "where the time of the engine's steps went", _shares),
    Column("ran, ms", _RAN, _milliseconds),
    Column("tok/draft step", "tokens for each of its steps", lambda row: _maybe(row.tokens_per_draft_step)),
)
COST = (
    Column("roof tok/s", "min(E∞/T_v, 1/T_d) from bare forwards of the same run", _roof),
    Column("of roof", "rate over the roof", lambda row: _maybe(row.efficiency)),
    Column("tok/s a device", "output tok/s over cores or GPUs", lambda row: number(row.rate_per_device)),
    Column("tok/GFLOP", _FLOP, lambda row: number(row.tokens_per_gflop)),
    Column("J/token", "energy of the processors", lambda row: _maybe(row.joules_per_token)),
)


def used_columns(rows: Sequence[Figures]) -> list[list[Column]]:
    """Those that say something of some row: of speed, of drafting, of what it costs."""
    return [
        [each for each in part if any(each.cell(row) != NOTHING for row in rows)]
        for part in (SPEED, DRAFTING, COST)
    ]
