"""The text of a report beside its tables: title, roofs, the draft's guesses, and how all was measured."""

from collections.abc import Callable, Iterable, Sequence

from ssd.bench.figures import Figures, Roof
from ssd.bench.manifest import Provenance
from ssd.bench.summary import RunFigures
from ssd.bench.tables import NOTHING, Column, Table, number

RATIOS = (
    "Ratios are of rates within a prompt, then the median over prompts: above 1, the case is faster. The "
    "ratio of two medians may differ from it. Intervals of ratios hold at 95 % for all pairs of cases "
    "together."
)
_ALTERNATIVES = 3
"""Guesses beside the first that `ssd plan --coverage` counts."""


def title(figures: RunFigures) -> str:
    manifest = figures.manifest
    target = manifest.target.name if manifest.target else manifest.settings.model
    return f"{target} with {manifest.draft.name} ahead of it" if manifest.draft else f"{target} alone"


def subtitle(figures: RunFigures) -> str:
    settings, session = figures.manifest.settings, figures.manifest.sessions[0]
    return (
        f"{', '.join(settings.datasets)}: {_prompts(figures)}, "
        f"{settings.max_tokens} tokens a text. "
        f"{session.hardware.get('processor', 'unknown processor')}, {session.started[:10]}."
    )


def _prompts(figures: RunFigures) -> str:
    settings = figures.manifest.settings
    asked = settings.num_prompts * len(settings.datasets)
    measured = len({(record.dataset, record.prompt) for record in figures.records})
    return (
        f"{settings.num_prompts} prompts each"
        if measured == asked
        else f"{measured} of {asked} prompts so far"
    )


def roofs(figures: RunFigures) -> Table[Figures]:
    """The roofs of the cases that have one."""

    def of(cell: Callable[[Figures, Roof], str]) -> Callable[[Figures], str]:
        return lambda row: NOTHING if row.roof is None else cell(row, row.roof)

    columns: Sequence[Column[Figures]] = (
        Column("case", lambda row: f"{row.dataset}, {figures.name_of(row.case)}", is_text=True),
        Column("E∞, tokens a round", of(lambda _, roof: f"{roof.tokens_a_round:.2f}")),
        Column("T_v, ms (rows)", of(lambda _, roof: f"{1e3 * roof.verify_seconds:.1f} ({roof.verify_rows})")),
        Column("T_d, ms (rows)", of(lambda _, roof: f"{1e3 * roof.draft_seconds:.1f} ({roof.draft_rows})")),
        Column("E_d, tokens a draft step", of(lambda _, roof: f"{roof.tokens_a_step:.2f}")),
        Column("E∞/T_v, tok/s", of(lambda _, roof: number(roof.verify_rate))),
        Column("E_d/T_d, tok/s", of(lambda _, roof: number(roof.draft_rate))),
        Column("roof", of(lambda _, roof: number(roof.rate))),
        Column("reached", of(lambda row, roof: f"{row.rate.value / roof.rate:.2f}")),
    )
    return Table(columns, [row for row in figures.rows if row.roof is not None])


def about_roofs(figures: RunFigures) -> str:
    """Explains the roof and, if a case was faster, that the roof was measured too low."""
    about = (
        "A draft that always had a whole speculation ready would give E∞ tokens a verification, and a step "
        "of a draft gives at most E_d tokens: one, and the runs that it looks up. T_v and T_d are bare "
        "forwards, measured in turns during the run."
    )
    above = [row for row in figures.rows if row.efficiency is not None and row.efficiency > 1]
    if not above:
        return about
    names = ", ".join(f"{figures.name_of(row.case)} on {row.dataset}" for row in above)
    return (
        f"{about} {names}: faster than the roof, which was measured too low: the bare forwards beside these "
        "texts met a slower machine than the texts did. Measure again with more prompts, on an idle machine."
    )


def guesses(figures: RunFigures) -> list[str]:
    """A sentence for each form of the draft: acceptance and coverage on the target's greedy texts."""
    by_form: dict[str, list[int]] = {}
    for each in figures.forwards:
        for form, ranks in each.ranks.items():
            by_form.setdefault(form, []).extend(ranks)
    return [_guesses(form, ranks) for form, ranks in by_form.items() if ranks]


def _guesses(form: str, ranks: Sequence[int]) -> str:
    wrong = [rank for rank in ranks if rank != 0]
    acceptance = 1 - len(wrong) / len(ranks)
    coverage = sum(1 <= rank <= _ALTERNATIVES for rank in wrong) / len(wrong) if wrong else 1.0
    return (
        f"The draft ({form}): its first guess is right at {acceptance:.0%} of places, one of the next three "
        f"at {coverage:.0%} of the rest (`ssd plan --acceptance {acceptance:.2f} --coverage {coverage:.2f}`)."
    )


FACTS = (
    Column[tuple[str, str]]("what", lambda fact: fact[0], is_text=True),
    Column[tuple[str, str]]("", lambda fact: fact[1], is_text=True),
)


def facts(figures: RunFigures) -> list[tuple[str, str]]:
    manifest = figures.manifest
    settings, sessions = manifest.settings, manifest.sessions
    models = [
        (
            name,
            f"{model.name}, {model.num_parameters / 1e6:.0f} M weights a row, {model.num_bytes / 1e9:.2f} GB",
        )
        for name, model in (("target", manifest.target), ("draft", manifest.draft))
        if model is not None
    ]
    devices = ", ".join(
        f"{each.label}: {each.num_devices} {manifest.kind_of_device}{'s' * (each.num_devices != 1)}"
        for each in manifest.cases
    )
    engine = ", ".join(f"{name}={value}" for name, value in settings.engine.items())
    return [
        *models,
        ("prompts", f"{settings.num_prompts} of each data set, from number {settings.first_prompt}"),
        ("tokens", f"{settings.max_tokens} a text, end tokens ignored; seeds from {settings.seed}"),
        (
            "order",
            "each batch of prompts in every case before the next; each case follows each other as evenly as "
            "their number allows",
        ),
        ("deterministic", "yes" if settings.deterministic else "no"),
        ("devices", devices),
        *([("engine settings", engine)] if engine else []),
        *((name, _then(each.hardware.get(name, "?") for each in sessions)) for name in sessions[0].hardware),
        ("versions", _then(_versions(each) for each in sessions)),
        ("commit", _then(each.commit or "unknown" for each in sessions)),
        ("started", _then(each.started for each in sessions)),
    ]


def _then(of_sessions: Iterable[str]) -> str:
    return ", then ".join(dict.fromkeys(of_sessions))


def _versions(session: Provenance) -> str:
    return ", ".join(f"{name} {version}" for name, version in session.versions.items())
