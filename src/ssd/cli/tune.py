"""`ssd tune`: finds the best settings for a target and a draft on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ssd.bench.tables import Column, Table
from ssd.cli.console import require_place, shown, user_errors
from ssd.cli.engine_options import EngineOptions
from ssd.cli.options import with_options
from ssd.cli.progress import progress_of

if TYPE_CHECKING:
    from ssd.bench.engines import CaseEngines
    from ssd.tuning.confirm import CaseRates
    from ssd.tuning.tuned_file import Tuned

_what = partial(typer.Option, rich_help_panel="What is measured")
_FOUND_OUT = ("mode", "lookahead", "draft_width", "draft_precision")
_LEAST_PROMPTS, _NUM_PROMPTS = 4, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    prompts: Annotated[Path | None, _what(help='A .jsonl file with {"text": …} lines.')] = None
    dataset: Annotated[str, _what(help="Without --prompts: humaneval, alpaca, gsm8k …")] = "humaneval"
    dataset_dir: Annotated[
        Path | None, _what(envvar="SSD_DATASET_DIR", help="Folder of NAME*.jsonl; else the hub.")
    ] = None
    num_prompts: Annotated[
        int | None,
        _what(
            min=_LEAST_PROMPTS, help=f"Half to tune with, half held out; all of --prompts, or {_NUM_PROMPTS}."
        ),
    ] = None
    max_tokens: Annotated[int, _what(min=16, help="Tokens to generate for each prompt.")] = 96
    temperature: Annotated[float, _what(min=0.0, help="0 is greedy.")] = 0.0
    seed: Annotated[int, _what(help="Seed of the first prompt.")] = 1000
    confirm: Annotated[int, _what(min=1, help="Number of predicted best cases to run on the engine.")] = 4

    def texts(self) -> tuple[list[str], list[str]]:
        """Prompts to tune with, and held-out ones; alternating, because files are often sorted."""
        from ssd.bench.datasets import load_prompts, prompts_of

        if self.prompts is None:
            found = load_prompts(self.dataset, self.dataset_dir, self.num_prompts or _NUM_PROMPTS)
        else:
            found = prompts_of(self.prompts, self.num_prompts)
        if len(found) < _LEAST_PROMPTS:
            raise ValueError(
                f"{len(found)} prompts are too few to tune with, half of which are held out: give at least "
                f"{_LEAST_PROMPTS}"
            )
        return found[::2], found[1::2]


@with_options
def tune(
    out: Annotated[Path, typer.Option(help="The file that `ssd serve --config` takes.")] = Path("tuned.yaml"),
    *,
    options: TuneOptions,
    engine: EngineOptions,
) -> None:
    """Find the settings for a target and its draft: measure, predict, confirm, write.

    Examples:

        ssd tune MODEL --draft SMALL_MODEL --prompts mine.jsonl --out tuned.yaml

        ssd serve --config tuned.yaml

    If speculation does not pay off, says so and writes mode ar.
    """
    with user_errors():
        engine.require_models(mode_may_change=True)
        _tune(out, options, engine)


def _tune(out: Path, options: TuneOptions, engine: EngineOptions) -> None:
    from ssd.bench.cases import Case
    from ssd.bench.engines import CaseEngines
    from ssd.config import DraftConfig, EngineConfig
    from ssd.tuning.noise import LoadWatch
    from ssd.tuning.tuned_file import Tuned, as_yaml, measured_cores, reasons

    console, watch = Console(), LoadWatch()
    if busy := watch.at_the_start():
        console.print(f"[yellow]{busy}[/]", highlight=False)
    given, draft = _given(engine)
    config = EngineConfig.from_settings(engine.named_model, given)
    require_place("--out", out)
    prompts, held_out = options.texts()
    # Cores and memory are planned for mode ssd, which needs most.
    engines = CaseEngines(config, DraftConfig.from_settings(draft), [Case(mode="ar"), Case(mode="ssd")])
    with engines:
        found = _find(engines, options, (prompts, held_out), console)
        own, drafts = measured_cores(
            found["chosen"].case, target=engines.config.cores, draft=engines.draft_cores
        )
        tuned = Tuned(engine.named_model, draft | drafts, given | own, **found)
        out.write_text(as_yaml(tuned))
        console.print(shown(_table(tuned)))
        for sentence in reasons(tuned):
            console.print(sentence, highlight=False)
        if stolen := watch.meanwhile():
            console.print(f"[yellow]{stolen}[/]", highlight=False)
        console.print(f"[green]written to {out}[/]: ssd serve --config {out}", highlight=False)


def _given(engine: EngineOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that the user gave for the engine and for the draft."""
    if engine.named_draft is None:
        raise ValueError(
            "nothing to tune without a draft: name a small model of the same family with --draft"
        )
    settings, flags = engine.settings(), engine.flags()
    if "mode" not in engine.given:
        del settings["mode"], flags["mode"]
    found_out = [name for name in _FOUND_OUT if name in flags]
    if found_out:
        raise ValueError(f"--{found_out[0].replace('_', '-')} is chosen by tuning: leave it out")
    if "draft_children" in flags:
        raise ValueError("tuning does not cover --draft-children: leave it out, and try by hand")
    draft = settings.pop("draft")
    return settings, draft


def _find(
    engines: CaseEngines, options: TuneOptions, texts: tuple[list[str], list[str]], console: Console
) -> dict[str, Any]:
    """Measure and choose; returns fields of Tuned. `texts`: prompts to tune with, and held-out ones."""
    from dataclasses import replace

    from ssd.bench.cases import Case
    from ssd.tuning.confirm import on_held_out, run_in_turns, winner
    from ssd.tuning.measure import measure
    from ssd.tuning.noise import refuse_implausible
    from ssd.tuning.search import search, shortlist

    def say(what: str) -> None:
        console.print(f"[dim]{what}[/]", highlight=False)

    prompts, held_out = texts
    facts = measure(
        engines,
        prompts,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        say=say,
    )
    refuse_implausible(facts)
    say("searching")
    candidates = search(facts)
    chosen = [Case(mode="ar"), *(each.case for each in shortlist(candidates, options.confirm))]
    cases = [
        replace(case, temperature=options.temperature, all_cores=facts.spreads and case.mode != "ssd")
        for case in chosen
    ]
    say(f"running {', '.join(case.name for case in cases)}, then the best of them on prompts held out")
    with progress_of("texts", Console(stderr=True, highlight=False)) as progress:
        bar = progress.add_task("measuring", total=len(cases) * len(prompts) + 2 * len(held_out))
        on_text = partial(progress.advance, bar)
        measured = run_in_turns(
            engines, cases, prompts, max_tokens=options.max_tokens, seed=options.seed, on_text=on_text
        )
        best = winner(measured, measured[0])
        unseen = on_held_out(
            engines,
            best,
            measured[0],
            held_out,
            max_tokens=options.max_tokens,
            seed=options.seed + len(prompts),
            on_text=on_text,
        )
    engines.close()
    return {
        "facts": facts,
        "predicted": candidates,
        "measured": measured,
        "chosen": best,
        "held_out": unseen,
    }


def _table(tuned: Tuned) -> Table[CaseRates]:
    from ssd.tuning.confirm import CaseRates

    def promised(each: CaseRates) -> str:
        found = tuned.predicted_rate(each.case)
        return "" if found is None else f"{found:.2f}"

    columns = (
        Column[CaseRates]("settings", lambda each: each.case.name, is_text=True),
        Column[CaseRates]("tokens/s", lambda each: f"{each.rate:.2f}"),
        Column[CaseRates](
            "× plain (95 %)", lambda each: "" if each is tuned.plain else str(tuned.over_plain(each))
        ),
        Column[CaseRates]("predicted", promised),
    )
    title = "measured in turns, on the prompts used for the choice; intervals hold together"
    return Table(columns, tuned.measured, title, lambda each: "bold green" if each is tuned.chosen else "")
