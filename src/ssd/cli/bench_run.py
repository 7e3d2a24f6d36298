"""`ssd bench run`: measures modes side by side on the same prompts, into a folder that can be resumed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ssd.cli.console import user_errors
from ssd.cli.engine_options import EngineOptions
from ssd.cli.options import with_options
from ssd.cli.progress import loading, progress_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ssd.bench.cases import Case
    from ssd.bench.manifest import RunSettings
    from ssd.bench.records import CaseRecord
    from ssd.bench.runs import BenchRun
    from ssd.config import DraftConfig, EngineConfig

_what = partial(typer.Option, rich_help_panel="What is measured")
_INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    cases: Annotated[
        str | None,
        _what(
            show_default=False,
            help="Such as ar,sd4,ssd+int8; see docs/bench.md. Default ar,sd4,ssd, or ar without a draft.",
        ),
    ] = None
    datasets: Annotated[str, _what(help="Names, or .jsonl files with a text on each line.")] = (
        "humaneval,alpaca,gsm8k,ultrafeedback"
    )
    dataset_dir: Annotated[
        Path | None, _what(envvar="SSD_DATASET_DIR", help="Folder of NAME*.jsonl; else the hub.")
    ] = None
    temperatures: Annotated[str, _what(help="Such as 0,0.7,1.")] = "0"
    batch_sizes: Annotated[str, _what(help="Prompts that run together, such as 1,4,16.")] = "1"
    num_prompts: Annotated[int, _what(help="Prompts of each data set.")] = 12
    first_prompt: Annotated[int, _what(help="Number of prompts to skip.")] = 0
    max_tokens: Annotated[int, _what(help="Tokens to generate for each prompt.")] = 96
    seed: Annotated[int, _what(help="Seed of the first prompt.")] = 1000
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print a line for each text.")] = False
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Resume even if source, versions or machine have changed.")
    ] = False

    def numbers(self) -> tuple[list[float], list[int]]:
        try:
            temperatures = [float(each) for each in self.temperatures.split(",")]
            batch_sizes = [int(each) for each in self.batch_sizes.split(",")]
        except ValueError as error:
            raise ValueError(f"--temperatures and --batch-sizes are numbers with commas: {error}") from error
        for name in ("num_prompts", "max_tokens"):
            if getattr(self, name) < 2:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: at least 2")
        return temperatures, batch_sizes


@with_options
def run(
    folder: Annotated[
        Path,
        typer.Option(
            "--run",
            metavar="DIR",
            help="Folder for the results. The same command resumes an interrupted run.",
        ),
    ],
    *,
    options: BenchOptions,
    engine: EngineOptions,
) -> None:
    """Measure modes side by side: the same target, the same prompts, in turns.

    Examples:

        ssd bench run MODEL --draft SMALL --run runs/first

        ssd bench run MODEL --draft SMALL --cases ar,ssd+int8 --run runs/int8

        ssd bench run MODEL --draft SMALL --batch-sizes 1,4,16 --run runs/load

    Exit code 1: outputs differ between modes, though the run is deterministic.
    """
    with user_errors():
        engine.require_models(mode_may_change=True)
        cases = _possible_cases(options, engine)
        code = _measure(folder, options, engine, cases)
    raise typer.Exit(code)


def _configs(engine: EngineOptions) -> tuple[EngineConfig, DraftConfig | None]:
    """Configs of target and draft. The cases set the mode."""
    from ssd.config import DraftConfig, EngineConfig

    settings = _without_cases(engine.settings())
    draft = settings.pop("draft", None)
    return (
        EngineConfig.from_settings(engine.named_model, settings),
        None if draft is None else DraftConfig.from_settings(draft),
    )


def _possible_cases(options: BenchOptions, engine: EngineOptions) -> list[Case]:
    """The cases. Refuses those that cannot run here before anything is downloaded or loaded."""
    from ssd.bench.cases import cases_of, refuse_cases

    config, draft = _configs(engine)
    cases = cases_of(options.cases or ("ar,sd4,ssd" if draft else "ar"), *options.numbers())
    refuse_cases(config, draft, cases)
    return cases


def _measure(folder: Path, options: BenchOptions, engine: EngineOptions, cases: list[Case]) -> int:
    from ssd.bench.datasets import dataset_label, load_prompts
    from ssd.bench.folder import RunFolder
    from ssd.bench.manifest import Manifest
    from ssd.bench.runs import BenchRun
    from ssd.cli.bench_reports import show_run
    from ssd.cli.machine import provenance

    names = [name.strip() for name in options.datasets.split(",")]
    prompts = {
        dataset_label(name): load_prompts(
            name, options.dataset_dir, options.num_prompts, options.first_prompt
        )
        for name in names
    }
    settings = _settings(options, engine, cases, prompts)
    manifest = Manifest(settings=settings, sessions=[provenance()])
    made = BenchRun(RunFolder(folder), manifest, cases, prompts, mixed=options.mixed)
    try:
        if not made.is_complete:
            _go_on(made, engine, cases, quiet=options.quiet)
    except KeyboardInterrupt:
        typer.echo(
            f"interrupted: {made.num_done} of {made.num_texts} texts are kept in {folder}; the same command "
            f"resumes the run, and `ssd bench report {folder}` shows the results so far",
            err=True,
        )
        return _INTERRUPTED
    return show_run(folder)


def _without_cases(flags: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that the cases set. Raises ValueError if a flag contradicts the cases."""
    if flags.get("mode", "ssd") != "ssd":
        raise ValueError("--mode is set by the cases here: --cases ar,sd4,ssd+int8 …")
    return {name: value for name, value in flags.items() if name != "mode"}


def _settings(
    options: BenchOptions,
    engine: EngineOptions,
    cases: Sequence[Case],
    prompts: dict[str, list[str]],
) -> RunSettings:
    from ssd.bench.manifest import RunSettings
    from ssd.bench.runs import digests

    flags = _without_cases(engine.flags())
    return RunSettings(
        model=engine.named_model,
        draft=flags.pop("draft", None),
        cases=[case.label for case in cases],
        datasets=list(prompts),
        num_prompts=options.num_prompts,
        first_prompt=options.first_prompt,
        max_tokens=options.max_tokens,
        seed=options.seed,
        deterministic=flags.get("deterministic", False),
        prompts=digests(prompts),
        engine={name: list(value) if isinstance(value, tuple) else value for name, value in flags.items()},
    )


def _go_on(made: BenchRun, engine: EngineOptions, cases: Sequence[Case], *, quiet: bool) -> None:
    from ssd.bench.engines import CaseEngines
    from ssd.models.hub import model_title

    config, draft = _configs(engine)
    with loading(model_title(engine.named_model), then="starting drafts") as show_progress:
        engines = CaseEngines(config, draft, cases, show_progress=show_progress)
    with engines, progress_of("texts", Console(stderr=True, highlight=False)) as progress:
        bar = progress.add_task("warming up", total=made.num_texts, completed=made.num_done)

        def on_turn(case: Case, records: Sequence[CaseRecord]) -> None:
            progress.update(bar, description="measuring", advance=len(records))
            if not quiet:
                progress.console.print(_line(case, records))

        made.go_on(engines, on_turn)


def _line(case: Case, records: Sequence[CaseRecord]) -> str:
    rate = sum(len(each.tokens) for each in records) / sum(each.seconds for each in records)
    users = f", {len(records)} together" if len(records) > 1 else ""
    return f"{records[0].dataset} {records[0].prompt:4}  {case.label:32} {rate:8.2f} tok/s{users}"
