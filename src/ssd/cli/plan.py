"""`ssd plan`: how fast and how dear AR, SD and SSD will be on given hardware, before any of it is there."""

import dataclasses
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssd.cli.errors import user_errors
from ssd.cli.options import with_options
from ssd.config.runner import MAX_NUM_SEQS
from ssd.planning.models import Weights

if TYPE_CHECKING:
    from ssd.planning.deployment import Site, Workload

_models = partial(typer.Option, rich_help_panel="Models")
_devices = partial(typer.Option, rich_help_panel="Devices")
_question = partial(typer.Option, rich_help_panel="Questions")
_MOST_DEVICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    hardware: Annotated[str, _devices(help="A device of the table (--list), or a .toml file.")] = "h100"
    draft_hardware: Annotated[str | None, _devices(help="The draft's, if it is another.")] = None
    devices: Annotated[
        int | None, _devices(min=1, help=f"At most so many for one replica; {_MOST_DEVICES}.")
    ] = None
    price: Annotated[float | None, _devices(help="Dollars an hour of a device.")] = None
    draft_price: Annotated[float | None, _devices(help="Of the draft's device.")] = None
    measured: Annotated[
        Path | None,
        _devices(help="Host time, launches and bandwidth as ssd doctor --selftest measured them."),
    ] = None

    def site(self, workload: "Workload") -> "Site":
        from ssd.planning.deployment import Site
        from ssd.planning.hardware import find_device
        from ssd.planning.measured import read_measured

        # The same device has the same price, unless it is said.
        draft_price = self.draft_price if self.draft_hardware else self.draft_price or self.price
        target = find_device(self.hardware, price=self.price)
        draft = find_device(self.draft_hardware or self.hardware, price=draft_price)
        if self.measured is None:
            return Site(workload, target, draft)
        found = read_measured(self.measured)
        return Site(
            dataclasses.replace(workload, host=found.host),
            found.as_measured(target),
            found.as_measured(draft),
            found.overheads(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    target: Annotated[str, _models(help="70B, qwen3-32b … or a config.json.")] = "70B"
    draft: Annotated[str, _models(help="Likewise.")] = "1B"
    target_weights: Annotated[Weights, _models(help="How its weights are kept.")] = "bf16"
    draft_weights: Annotated[Weights, _models(help="Likewise.")] = "bf16"
    acceptance: Annotated[float, _models(help="How often the draft's first guess is right.")] = 0.8
    coverage: Annotated[float, _models(help="If it is wrong: how often one of the next three is right.")] = (
        0.75
    )
    repeats: Annotated[float, _models(help="Share of places where the earlier text knows what follows.")] = (
        0.0
    )
    context: Annotated[int, _question(min=1, help="Tokens, on average.")] = 1024
    max_width: Annotated[int, _question(min=12, help="Rows of a draft step: what the engine takes.")] = 64

    def workload(self) -> "Workload":
        from ssd.planning.deployment import Workload
        from ssd.planning.models import find_model

        return Workload(
            find_model(self.target, self.target_weights),
            find_model(self.draft, self.draft_weights),
            acceptance=self.acceptance,
            coverage=self.coverage,
            repeats=self.repeats,
            context=self.context,
            max_width=self.max_width,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions:
    batch: Annotated[int | None, _question(min=1, help="Sequences at a time; 1.")] = None
    fleet: Annotated[
        float | None, _question(metavar="TOKENS/S", help="Plan a fleet for so many; a minute.")
    ] = None
    pool: Annotated[
        int | None,
        _question(min=1, metavar="TARGETS", help="Plan drafts for so many targets, and say what breaks."),
    ] = None
    seats: Annotated[
        int | None, _question(min=1, help=f"With --pool: sequences that a draft takes; {MAX_NUM_SEQS}.")
    ] = None
    hosts: Annotated[
        str | None, _question(metavar="FILE", help="With --pool: what hosts cost, measured; a .toml file.")
    ] = None
    batches: Annotated[bool, _question("--batches", help="From which batch on SSD stops paying.")] = False
    show_list: Annotated[bool, _question("--list", help="The devices and models that are known.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False

    def check(self, devices: int | None) -> None:
        """ValueError where something was said that would not be heard."""
        asked_for = {"--fleet": self.fleet is not None, "--batches": self.batches, "--pool": bool(self.pool)}
        several = [name for name, is_asked in asked_for.items() if is_asked]
        if len(several) > 1:
            raise ValueError(f"{' and '.join(several)} are two questions: ask one at a time")
        if self.fleet is not None and devices is not None:
            raise ValueError("--fleet does not listen to --devices: replicas have the sizes that pay")
        if self.pool is None and (self.seats or self.hosts):
            raise ValueError("--seats and --hosts are for a pool: name its targets with --pool")
        asked = "--fleet" if self.fleet is not None else "--batches" if self.batches else None
        if asked is not None and self.batch is not None:
            raise ValueError(f"{asked} does not listen to --batch: it looks at batches of every size")


@with_options
def plan(*, models: ModelOptions, devices: DeviceOptions, questions: QuestionOptions) -> None:
    """Predict AR, SD and SSD from data sheets: speed, best split of devices, cost, batches, fleets.

    Examples:

        ssd plan --hardware h100 --target 70B --draft 1B --acceptance 0.88

        ssd plan --target 70B --draft 1B --acceptance 0.88 --fleet 1000000

        ssd plan --target 70B --draft 1B --acceptance 0.88 --pool 64 --batch 4
    """
    from ssd.cli import plan_tables

    with user_errors():
        if questions.show_list:
            _show([plan_tables.devices(), plan_tables.sizes()], {}, as_json=False)
            return
        questions.check(devices.devices)
        site, most_devices = devices.site(models.workload()), devices.devices or _MOST_DEVICES
        if questions.fleet is not None:
            _plan_fleet(site, questions.fleet, as_json=questions.as_json)
        elif questions.pool is not None:
            _plan_pool(site, most_devices, questions)
        elif questions.batches:
            _plan_batches(site, most_devices, as_json=questions.as_json)
        else:
            _plan_replica(site, most_devices, questions.batch or 1, as_json=questions.as_json)


def _plan_replica(site: "Site", devices: int, batch: int, *, as_json: bool) -> None:
    from ssd.cli import plan_tables
    from ssd.planning import advice

    offers = site.splits(devices, batch)
    said = [*advice.about_extra_device(offers), *advice.about_room(site, devices, batch)]
    said += [*advice.about_times(site), *advice.about_engines(offers)]
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
    said = [*advice.about_batches(rows), *advice.about_times(site)]
    said += advice.about_engines([row.ar for row in rows])
    _show(
        [plan_tables.batches(rows, tp), *said],
        {"batches": [_row(each) for each in rows], "advice": said},
        as_json=as_json,
    )


def _plan_fleet(site: "Site", tokens: float, *, as_json: bool) -> None:
    from ssd.cli import plan_tables
    from ssd.planning import advice, fleet

    found = fleet.offers(site)
    rows = fleet.by_speed(found, tokens)
    shared = fleet.shared_drafts(site)
    said = [*advice.about_times(site), *advice.about_engines(found)]
    _show(
        [plan_tables.fleets(rows, tokens), plan_tables.shared_drafts(shared), *said],
        {"fleets": [_row(each) for each in rows], "shared_drafts": [_row(each) for each in shared]},
        as_json=as_json,
    )


def _plan_pool(site: "Site", devices: int, questions: QuestionOptions) -> None:
    from ssd.cli import plan_tables
    from ssd.planning import advice
    from ssd.planning.hosts import measured_hosts
    from ssd.planning.pool import Pool

    batch, hosts = questions.batch or 1, measured_hosts(questions.hosts)
    tp, seats = site.least_tp(devices, batch), questions.seats or MAX_NUM_SEQS
    pool = Pool(site, hosts, questions.pool or 1, tp, batch, seats)
    plan = pool.plan()
    said = [*advice.about_pool(plan), *advice.about_times(site), *advice.about_engines([plan.best.offer])]
    said += [f"What hosts cost: {each.source}." for each in (hosts.draft, hosts.target) if each.source]
    _show(
        [plan_tables.pool(pool, plan), *said],
        {"pool": [_row(each) for each in plan.rows], "limits": [_row(each) for each in plan.limits]}
        | {"best": _row(plan.best), "longest_trip": plan.longest_trip, "advice": said},
        as_json=questions.as_json,
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

    from ssd.bench.tables import Table
    from ssd.cli.tables import shown

    if as_json:
        typer.echo(json.dumps(content, indent=1, default=str))
        return
    console = Console(highlight=False)
    for part in parts:
        console.print(shown(part) if isinstance(part, Table) else part)
