"""A grid of settings, measured beside a tuned file: the check of the tuner. Slow, and needed by nobody who
trusts it.

    python -m benchmarks.grid tuned.yaml --prompts mine.jsonl      # as `ssd tune` was told

Runs on the half of the prompts that tuning held out. Drafts that work ahead are processes with a model each,
so only a few points are there at a time, and the tuned settings run beside every group: points of different
groups compare by their ratio to these. The best of many noisy points is also the luckiest, so the best few
run a second time, and that is what counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from ssd.bench.cases import OF_THE_DRAFT, Case
from ssd.bench.engines import CaseEngines
from ssd.bench.statistics import Estimate
from ssd.bench.tables import Column, Table
from ssd.cli.console import shown, user_errors
from ssd.cli.options import parse_cores, with_options
from ssd.cli.tune import TuneOptions
from ssd.config import DraftConfig, EngineConfig, GrowthPolicyName
from ssd.tuning.confirm import run_in_turns
from ssd.tuning.tuned_file import Cores

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


def read_tuned(file: Path) -> tuple[Case, EngineConfig, DraftConfig | None]:
    """The case of a tuned file, the target's settings, and the draft's."""
    said = _settings(yaml.safe_load(file.read_text()))
    model, draft = said.pop("model"), _settings(said.pop("draft", {}))
    of_case = {name: said.pop(name) for name in Case.__dataclass_fields__ if name in said}
    of_case |= {name: draft.pop(setting) for name, setting in OF_THE_DRAFT.items() if setting in draft}
    config = EngineConfig.from_settings(model, said)
    return Case(**of_case), config, DraftConfig.from_settings(draft) if draft else None


def split_cores(
    case: Case, config: EngineConfig, draft: DraftConfig | None, target: Cores, beside: Cores
) -> tuple[Case, EngineConfig, DraftConfig | None]:
    """Of a file whose case has all cores: the points of the grid need some for their drafts."""
    if not target or not beside:
        raise ValueError(
            "the tuned settings have all cores: say --cores and --draft-cores, as `ssd tune` was told"
        )
    draft = draft and replace(draft, cores=beside)
    return replace(case, all_cores=True), replace(config, cores=target), draft


def _settings(section: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.replace("-", "_"): tuple(value) if isinstance(value, list) else value
        for name, value in section.items()
    }


app = typer.Typer(add_completion=False)


@app.command()
@with_options
def grid(
    tuned: Annotated[Path, typer.Argument(help="What `ssd tune` wrote.")],
    draft: Annotated[str | None, typer.Option(help="Where the file says mode ar and names none.")] = None,
    cores: Annotated[str, typer.Option(help="Of the target, where the file has it on all of them.")] = "",
    draft_cores: Annotated[str, typer.Option(help="And of the drafts beside it.")] = "",
    *,
    options: TuneOptions,
) -> None:
    """Run 24 settings beside the tuned ones, on the prompts held out."""
    with user_errors():
        case, config, named = read_tuned(tuned)
        drafting = DraftConfig(model=draft) if draft else named
        if config.cores and not (drafting and drafting.cores):
            case, config, drafting = split_cores(
                case, config, drafting, parse_cores(cores), parse_cores(draft_cores)
            )
        _check(replace(case, temperature=options.temperature), config, drafting, options)


def _check(tuned: Case, config: EngineConfig, draft: DraftConfig | None, options: TuneOptions) -> None:
    console, (_, held_out) = Console(highlight=False), options.texts()
    with CaseEngines(config, draft, [Case(mode="ar"), Case(mode="ssd")]) as engines:

        def run(cases: Sequence[Case] | None = None) -> list[Point]:
            return run_grid(
                engines, tuned, held_out, max_tokens=options.max_tokens, seed=options.seed,
                say=console.print, cases=cases,
            )  # fmt: skip

        points = run()
        console.print(shown(_table("the grid, beside the tuned settings", points)))
        again = run([point.case for point in points[:AGAIN]])
        console.print(shown(_table("the best of these, again", again)))
    console.print(
        f"the tuned settings are {distance(again):.1%} behind the best of the grid; {distance(points):.1%} "
        "the first time: the best of 24 is also the luckiest"
    )


def _table(title: str, points: Sequence[Point]) -> Table[Point]:
    columns = (
        Column[Point]("settings", lambda point: point.case.name, is_text=True),
        Column[Point]("× tuned (95 %)", lambda point: str(point.ratio)),
    )
    return Table(columns, points, title)


if __name__ == "__main__":
    app()
