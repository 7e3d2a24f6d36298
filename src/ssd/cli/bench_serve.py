"""`ssd bench serve`: servers under load, from one user to many, driven by guidellm."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ssd.cli.errors import user_errors
from ssd.cli.options import with_options
from ssd.cli.tables import progress_of, shown

if TYPE_CHECKING:
    from ssd.bench.load import Endpoint, LoadFolder, LoadSettings
    from ssd.bench.load_guidellm import Guidellm

_who = partial(typer.Option, rich_help_panel="Who is asked")
_what = partial(typer.Option, rich_help_panel="What is measured")
_cost = partial(typer.Option, rich_help_panel="What it costs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    model: Annotated[str | None, _who(help="What servers call it; else their first.")] = None
    against_ar: Annotated[
        bool, _who("--against-ar", help="Also the same server with speculation: false.")
    ] = False
    api_key: Annotated[str | None, _who(envvar="SSD_API_KEY", help="For all of them.")] = None
    guidellm: Annotated[
        str | None, _who(envvar="SSD_GUIDELLM", help="That program; else one on the PATH.")
    ] = None
    users: Annotated[str, _what(help="Closed loop: so many ask at a time. Empty: none.")] = "1,2,4,8,16,32,64"
    rates: Annotated[str, _what(help="Poisson: requests a second, such as 0.5,1,2.")] = ""
    requests: Annotated[int, _what(min=1, help="Of each of the users, in a round.")] = 2
    rate_requests: Annotated[int, _what(min=2, help="In a round, at each of the rates.")] = 16
    rounds: Annotated[int, _what(min=1, help="How often, in turns; a verdict needs six.")] = 6
    max_seconds: Annotated[float, _what(help="Of a level, at most.")] = 600
    max_tokens: Annotated[int, _what(min=2, help="Of each answer.")] = 64
    datasets: Annotated[str, _what(help="Names, or .jsonl files.")] = "humaneval,alpaca,gsm8k,ultrafeedback"
    dataset_dir: Annotated[
        Path | None, _what(envvar="SSD_DATASET_DIR", help="Of NAME*.jsonl; else the hub.")
    ] = None
    num_prompts: Annotated[int, _what(min=1, help="Of each data set; used again if need be.")] = 32
    devices: Annotated[
        list[str] | None, _cost(help="Devices kept for a server: 2, or NAME=2 for one of them.")
    ] = None
    draft_devices: Annotated[float, _cost(help="Of these the draft's, which --against-ar would save.")] = 0
    price: Annotated[float | None, _cost(help="Of a device for an hour, in any currency.")] = None


@with_options
def serve_load(
    folder: Annotated[
        Path, typer.Option("--run", metavar="DIR", help="Where it is kept. Started again, a run goes on.")
    ],
    url: Annotated[list[str], typer.Option(metavar="[NAME=]URL", help="A server; repeat it to compare.")],
    *,
    options: LoadOptions,
) -> None:
    """Put servers of OpenAI's API under load: where speculation helps, where it stops, what it costs.

    Examples:

        ssd bench serve --url http://127.0.0.1:8000 --against-ar --run runs/load

        ssd bench serve --url ssd=http://a:8000 --url vllm=http://b:8000 --run runs/two
    """
    with user_errors():
        _measure(folder, url, options)


def _measure(path: Path, urls: list[str], options: LoadOptions) -> None:
    from ssd.bench.datasets import digest_of, load_prompts
    from ssd.bench.load import LoadFolder
    from ssd.bench.load_guidellm import Guidellm
    from ssd.bench.pages.drawing import need_matplotlib

    need_matplotlib()  # before, not after, an hour of measuring
    program, folder = _program(options), LoadFolder(path)
    sets = [load_prompts(name, options.dataset_dir, options.num_prompts) for name in _split(options.datasets)]
    prompts = [text for neighbours in zip(*sets, strict=True) for text in neighbours]
    settings = _settings(urls, options, digest_of(prompts))
    folder.begin(settings)
    _go_on(folder, settings, Guidellm(program=program, prompts=prompts, api_key=options.api_key))
    _show(folder, options.price)


def _settings(urls: list[str], options: LoadOptions, prompts: str) -> LoadSettings:
    from ssd.bench.datasets import dataset_label
    from ssd.bench.load import Level, LoadSettings

    try:
        users = [int(each) for each in _split(options.users)]
        rates = [float(each) for each in _split(options.rates)]
    except ValueError as error:
        raise ValueError(f"--users and --rates are numbers with commas: {error}") from error
    levels = [Level(kind="users", value=each) for each in users]
    levels += [Level(kind="rate", value=each) for each in rates]
    if not levels or min(level.value for level in levels) <= 0:
        raise ValueError("no load is named: --users 1,4,16, or --rates 0.5,1")
    return LoadSettings(
        endpoints=_endpoints(urls, options),
        levels=levels,
        datasets=[dataset_label(name) for name in _split(options.datasets)],
        prompts=prompts,
        num_prompts=options.num_prompts,
        max_tokens=options.max_tokens,
        requests=options.requests,
        rate_requests=options.rate_requests,
        max_seconds=options.max_seconds,
        rounds=options.rounds,
    )


def _endpoints(urls: list[str], options: LoadOptions) -> list[Endpoint]:
    from ssd.bench.load import Endpoint, first_model

    devices = _devices(options.devices or [])
    found: list[Endpoint] = []
    for place, said in enumerate(urls):
        # A URL may have an equals sign of its own, but not before its scheme.
        named, _, rest = said.partition("=") if "=" in said.split("://")[0] else ("", "", said)
        name = named or ("ssd" if place == 0 else f"server {place + 1}")
        url = rest.rstrip("/").removesuffix("/v1")
        model = options.model or first_model(url, options.api_key)
        count = devices.get(name, devices.get("", 1.0))
        found.append(Endpoint(name=name, url=url, model=model, devices=count))
    if options.against_ar:
        first, saved = found[0], options.draft_devices
        if not 0 <= saved < first.devices:
            raise ValueError(f"--draft-devices {saved:g}: less than --devices, which is {first.devices:g}")
        alone = replace(first, name="ar", devices=first.devices - saved, body={"speculation": False})
        found.insert(1, alone)
    if len({each.name for each in found}) < len(found):
        raise ValueError("two servers have one name: --url NAME=URL, each name once")
    return found


def _devices(said: list[str]) -> dict[str, float]:
    """By name; the empty name stands for all others."""
    try:
        pairs = [text.rpartition("=")[::2] for text in said]
        return {name: float(count) for name, count in pairs}
    except ValueError as error:
        raise ValueError(f"--devices is a number, or NAME=NUMBER: {error}") from error


def _program(options: LoadOptions) -> str:
    from ssd.bench.load_guidellm import SETUP

    found = shutil.which(options.guidellm or "guidellm")
    if found is None:
        commands = "; ".join(SETUP)
        raise ValueError(f"guidellm is not there: {commands}; then --guidellm venvs/guidellm/bin/guidellm")
    return found


def _go_on(folder: LoadFolder, settings: LoadSettings, generator: Guidellm) -> None:
    from ssd.bench.load import turns

    done = {(each.endpoint, each.level, each.round) for each in folder.records()}
    all_turns = turns(settings)
    with progress_of("levels", Console(stderr=True, highlight=False)) as progress:
        bar = progress.add_task("load", total=len(all_turns), completed=len(done))
        for endpoint, level, number in all_turns:
            if (endpoint.name, level, number) in done:
                continue
            progress.update(bar, description=f"{endpoint.name}, {level}")
            record = generator.run(endpoint, level, number, settings, folder.path / "guidellm.log")
            folder.add(record)
            failed = f", {record.num_failed} failed: {record.first_failure}" if record.num_failed else ""
            words = f"{endpoint.name}, {level}: {len(record.answers)} answers{failed}"
            progress.console.print(escape(words), soft_wrap=True)
            progress.advance(bar)


def _show(folder: LoadFolder, price: float | None) -> None:
    from ssd.bench.load_figures import LoadFigures
    from ssd.bench.load_report import SHORT, verdicts, write_load_report
    from ssd.bench.tables import Table

    figures = LoadFigures(folder.settings(), folder.records(), price)
    console = Console(highlight=False)
    if not figures.rows():
        raise ValueError(f"nobody answered: see {folder.path}, and whether the servers run")
    console.print(shown(Table(SHORT, figures.rows())))
    for line in verdicts(figures):
        console.print(line, soft_wrap=True)
    for page in write_load_report(figures, folder.path):
        console.print(f"[dim]{escape(str(page))}[/]", soft_wrap=True)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
