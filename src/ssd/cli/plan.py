"""`ssd plan`: how fast and how dear AR, SD and SSD will be on given hardware, before any of it is there."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssd.cli.errors import user_errors
from ssd.cli.plan_questions import check_questions, kept_rows, run_rows

if TYPE_CHECKING:
    from ssd.planning.deployment import Site

_MODELS, _DEVICES, _QUESTIONS = "Models", "Devices", "Questions"
_MOST_DEVICES = 8


def plan(
    hardware: Annotated[
        str, typer.Option(rich_help_panel=_DEVICES, help="A device of the table (--list), or a .toml file.")
    ] = "h100",
    draft_hardware: Annotated[
        str | None, typer.Option(rich_help_panel=_DEVICES, help="The draft's, if it is another.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_DEVICES, min=1, help=f"At most so many for one replica; {_MOST_DEVICES}."
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(rich_help_panel=_DEVICES, help="Dollars an hour of a device.")
    ] = None,
    draft_price: Annotated[
        float | None, typer.Option(rich_help_panel=_DEVICES, help="Of the draft's device.")
    ] = None,
    target: Annotated[
        str, typer.Option(rich_help_panel=_MODELS, help="70B, qwen3-32b … or a config.json.")
    ] = "70B",
    draft: Annotated[str, typer.Option(rich_help_panel=_MODELS, help="Likewise.")] = "1B",
    target_weights: Annotated[
        str, typer.Option(rich_help_panel=_MODELS, help="bf16, fp8, int8 or int4.")
    ] = "bf16",
    draft_weights: Annotated[str, typer.Option(rich_help_panel=_MODELS, help="Likewise.")] = "bf16",
    acceptance: Annotated[
        float, typer.Option(rich_help_panel=_MODELS, help="How often the draft's first guess is right.")
    ] = 0.8,
    coverage: Annotated[
        float,
        typer.Option(
            rich_help_panel=_MODELS, help="If it is wrong: how often one of the next three is right."
        ),
    ] = 0.75,
    repeats: Annotated[
        float,
        typer.Option(
            rich_help_panel=_MODELS, help="Share of places where the earlier text knows what follows."
        ),
    ] = 0.0,
    context: Annotated[
        int, typer.Option(rich_help_panel=_QUESTIONS, min=1, help="Tokens, on average.")
    ] = 1024,
    batch: Annotated[
        int | None, typer.Option(rich_help_panel=_QUESTIONS, min=1, help="Sequences at a time; 1.")
    ] = None,
    max_width: Annotated[
        int,
        typer.Option(rich_help_panel=_QUESTIONS, min=12, help="Rows of a draft step: what the engine takes."),
    ] = 64,
    fleet: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_QUESTIONS, metavar="TOKENS/S", help="Plan a fleet for so many; a minute."
        ),
    ] = None,
    batches: Annotated[
        bool,
        typer.Option("--batches", rich_help_panel=_QUESTIONS, help="From which batch on SSD stops paying."),
    ] = False,
    validate: Annotated[
        bool, typer.Option("--validate", rich_help_panel=_QUESTIONS, help="Predictions beside measurements.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_QUESTIONS, metavar="RUN", help="With --validate: a folder of `ssd bench run`."
        ),
    ] = None,
    show_list: Annotated[
        bool,
        typer.Option("--list", rich_help_panel=_QUESTIONS, help="The devices and models that are known."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Predict AR, SD and SSD from data sheets: speed, best split of devices, cost, batches, fleets.

    Examples:

        ssd plan --hardware h100 --target 70B --draft 1B --acceptance 0.88

        ssd plan --hardware h100 --target 70B --draft 1B --acceptance 0.88 --fleet 1000000

        ssd plan --validate --run runs/mine
    """
    from ssd.cli import plan_tables

    with user_errors():
        if show_list:
            plan_tables.show_known()
            return
        check_questions(
            {"--fleet": fleet, "--batches": batches or None, "--validate": validate or None},
            {"--devices": devices, "--batch": batch, "--run": run},
        )
        if validate:
            _validate(run, coverage, as_json=as_json)
            return
        site = _site(
            (hardware, price),
            (draft_hardware or hardware, draft_price if draft_hardware else draft_price or price),
            _workload(
                (target, target_weights),
                (draft, draft_weights),
                acceptance=acceptance,
                coverage=coverage,
                repeats=repeats,
                context=context,
                max_width=max_width,
            ),
        )
        if fleet is not None:
            _plan_fleet(site, fleet, as_json=as_json)
        elif batches:
            _plan_batches(site, devices or _MOST_DEVICES, as_json=as_json)
        else:
            _plan_replica(site, devices or _MOST_DEVICES, batch or 1, as_json=as_json)


def _validate(run: Path | None, coverage: float, *, as_json: bool) -> None:
    from ssd.cli import plan_tables

    rows, said = kept_rows() if run is None else run_rows(run, coverage)
    _show([*plan_tables.validation(rows), *said], [_row(each) for each in rows], as_json=as_json)


def _workload(target: tuple[str, Any], draft: tuple[str, Any], **more: Any) -> Any:
    from ssd.planning.deployment import Workload
    from ssd.planning.models import find_model

    return Workload(find_model(*target), find_model(*draft), **more)


def _site(target: tuple[str, float | None], draft: tuple[str, float | None], workload: Any) -> "Site":
    from ssd.planning.deployment import Site
    from ssd.planning.hardware import find_device

    name, price = target
    draft_name, draft_price = draft
    return Site(workload, find_device(name, price=price), find_device(draft_name, price=draft_price))


def _plan_replica(site: "Site", devices: int, batch: int, *, as_json: bool) -> None:
    from ssd.cli import plan_tables
    from ssd.planning import advice

    offers = site.splits(devices, batch)
    said = advice.about_extra_device(offers)
    _show(
        [plan_tables.replica(site, offers), *said],
        {"offers": [_row(each) for each in offers], "advice": said},
        as_json=as_json,
    )


def _plan_batches(site: "Site", devices: int, *, as_json: bool) -> None:
    from ssd.cli import plan_tables
    from ssd.planning import advice, fleet

    fitting = [each.tp for each in site.splits(devices) if each.way == "sd"]
    if not fitting:
        raise ValueError(
            f"target and draft do not fit together on {devices} devices: give more with --devices"
        )
    tp = min(fitting)
    rows = fleet.batch_rows(site, tp, most_devices=devices)
    said = advice.about_batches(rows)
    _show(
        [plan_tables.batches(rows, tp), *said],
        {"batches": [_row(each) for each in rows], "advice": said},
        as_json=as_json,
    )


def _plan_fleet(site: "Site", tokens: float, *, as_json: bool) -> None:
    from ssd.cli import plan_tables
    from ssd.planning import fleet

    found = fleet.offers(site)
    rows = fleet.by_speed(found, tokens)
    pools = fleet.pools(site)
    _show(
        [plan_tables.fleets(rows, tokens), plan_tables.pools(pools)],
        {"fleets": [_row(each) for each in rows], "pools": [_row(each) for each in pools]},
        as_json=as_json,
    )


def _row(row: Any) -> dict[str, Any]:
    """A dataclass with what its properties say."""
    said = dataclasses.asdict(row)
    for name in dir(type(row)):
        if isinstance(getattr(type(row), name), property):
            said[name] = getattr(row, name)
    return said


def _show(parts: list[Any], content: Any, *, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        typer.echo(json.dumps(content, indent=1, default=str))
        return
    console = Console()
    for part in parts:
        console.print(part, highlight=False)
