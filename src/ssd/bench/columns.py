"""The columns of a run's tables of speed, drafting and cost."""

from ssd.bench.figures import Figures
from ssd.bench.tables import NOTHING, Column, maybe, number


def _shares(row: Figures) -> str:
    shares = (row.shares.verifying, row.shares.drafting, row.shares.waiting, row.shares.host)
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def _milliseconds(row: Figures) -> str:
    draft = "" if row.draft_milliseconds is None else f" / {number(row.draft_milliseconds)}"
    return number(row.verify_milliseconds) + draft


def _accepted(row: Figures) -> str:
    return NOTHING if row.case.mode == "ar" else f"{row.accepted_per_round:.2f}"


_RATE = "1 / time per output token: median over prompts, 95 % interval"
_OVER_AR = "rate over plain decoding's on the target's own devices, prompt by prompt: median, 95 % interval"
_OVER_WIDE = "the same over plain decoding on the draft's cores as well"
_OVER_SD = "over the fastest sd case; of several, chosen by every other prompt, and compared on the rest"
_RAN = "a verification / a step of a draft that works ahead, while both ran"
_FLOP = "tokens per 10⁹ multiplications and additions of target and draft, prompts included"
_ROOF = "min(E∞/T_v, E_d/T_d) from bare forwards of the same run"
_PER_TOKEN = "time per output token: median"
_OUTPUT = "all texts over wall time, prompts included"
_DIFFER = "texts that differ from plain decoding's in any token"
_FIRST = "from request to first token: median"
OVER_AR = Column[Figures]("× ar", lambda row: str(row.over_ar or NOTHING), _OVER_AR)
OVER_SD = Column[Figures]("× best sd", lambda row: str(row.over_sd or NOTHING), _OVER_SD)
ACCEPTED = Column[Figures]("accepted a round", _accepted, "drafted tokens accepted in one verification")
HITS = Column[Figures](
    "hits", lambda row: maybe(row.hit_rate), "rounds after which the next speculation was ready"
)
OF_ROOF = Column[Figures]("of roof", lambda row: maybe(row.efficiency), "rate over the roof")
PARTS: tuple[tuple[Column[Figures], ...], ...] = (
    (
        Column("tok/s a user", lambda row: row.rate.spelled(number), _RATE),
        OVER_AR,
        Column("× ar+allcores", lambda row: str(row.over_wide_ar or NOTHING), _OVER_WIDE),
        OVER_SD,
        Column("ms/token", lambda row: number(row.milliseconds_per_token.value), _PER_TOKEN),
        Column("first token, ms", lambda row: f"{1e3 * row.first_token.value:.0f}", _FIRST),
        Column("output tok/s", lambda row: number(row.output_rate), _OUTPUT),
        Column("differ", lambda row: str(row.differing), _DIFFER),
    ),
    (
        ACCEPTED,
        HITS,
        Column("late", lambda row: maybe(row.late_rate), "misses: the draft was behind"),
        Column("unknown", lambda row: maybe(row.unknown_rate), "misses: the draft had guessed other tokens"),
        Column("verify / draft / wait / host %", _shares, "where the time of the engine's steps went"),
        Column("ran, ms", _milliseconds, _RAN),
        Column("tok/draft step", lambda row: maybe(row.tokens_per_draft_step), "for each of its steps"),
    ),
    (
        Column("roof tok/s", lambda row: NOTHING if row.roof is None else number(row.roof.rate), _ROOF),
        OF_ROOF,
        Column("tok/s a device", lambda row: number(row.rate_per_device), "output tok/s over cores or GPUs"),
        Column("tok/GFLOP", lambda row: number(row.tokens_per_gflop), _FLOP),
    ),
)  # fmt: skip
SHORT = (
    Column[Figures]("tok/s", lambda row: f"{row.rate.value:.2f}"),
    OVER_AR,
    OVER_SD,
    ACCEPTED,
    HITS,
    OF_ROOF,
)
"""For a terminal."""
