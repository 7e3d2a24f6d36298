"""`ssd plan`: predicts the speed of AR, SD and SSD on given hardware."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssd.bench.tables import Column, Table
from ssd.cli.console import user_errors
from ssd.cli.options import with_options
from ssd.planning.models import Weights

if TYPE_CHECKING:
    from ssd.planning.deployment import Offer, Site, Workload
    from ssd.planning.hardware import Device

_models = partial(typer.Option, rich_help_panel="Models")
_devices = partial(typer.Option, rich_help_panel="Devices")
_load = partial(typer.Option, rich_help_panel="Load")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    hardware: Annotated[str, _devices(help="A device of the table (--list), or a .toml file.")] = "h100"
    draft_hardware: Annotated[str | None, _devices(help="Device of the draft, if different.")] = None
    devices: Annotated[int, _devices(min=1, help="Most devices for one replica.")] = 8

    def site(self, workload: "Workload") -> "Site":
        from ssd.planning.deployment import Site
        from ssd.planning.hardware import find_device

        target, draft = find_device(self.hardware), find_device(self.draft_hardware or self.hardware)
        return Site(workload, target, draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The target, as --target.", show_default=False)
    ] = None
    target: Annotated[
        str | None, _models(help="70B, qwen3-32b … or a config.json. Default 70B.", show_default=False)
    ] = None
    draft: Annotated[str, _models(help="The draft, in the same form.")] = "1B"
    target_weights: Annotated[Weights, _models(help="Number format of the target's weights.")] = "bf16"
    draft_weights: Annotated[Weights, _models(help="Number format of the draft's weights.")] = "bf16"
    acceptance: Annotated[float, _models(help="How often the draft's first guess is right.")] = 0.8
    coverage: Annotated[float, _models(help="If it is wrong: how often one of the next three is right.")] = (
        0.75
    )
    batch: Annotated[int, _load(min=1, help="Sequences at a time.")] = 1
    context: Annotated[int, _load(min=1, help="Mean context length in tokens.")] = 1024

    @property
    def _named_target(self) -> str:
        if self.model and self.target and self.model != self.target:
            raise ValueError(f"two targets, {self.model} and --target {self.target}: name one")
        return self.model or self.target or "70B"

    def workload(self) -> "Workload":
        from ssd.planning.deployment import Workload
        from ssd.planning.models import find_model
        from ssd.planning.rounds import Pair

        return Workload(
            find_model(self._named_target, self.target_weights),
            find_model(self.draft, self.draft_weights),
            Pair(self.acceptance, self.coverage),
            batch=self.batch,
            context=self.context,
        )


@with_options
def plan(
    show_list: Annotated[bool, typer.Option("--list", help="List the known devices and models.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    models: ModelOptions,
    devices: DeviceOptions,
) -> None:
    """Predict AR, SD and SSD from data sheets: speed, and the best split of devices.

    Examples:

        ssd plan --hardware h100 --target 70B --draft 1B --acceptance 0.88

        ssd plan 8B --draft 1B --acceptance 0.8 --devices 2 --batch 4
    """
    from ssd.planning import advice
    from ssd.planning.verdict import about_sharing

    with user_errors():
        if show_list:
            _show(_device_table(), _model_table())
            return
        site = devices.site(models.workload())
        offers = site.offers(devices.devices)
    remarks = [*advice.about_extra_device(offers), *advice.about_room(site, devices.devices)]
    remarks += [*advice.about_times(site), *advice.about_engines(offers), *about_sharing(site)]
    if as_json:
        typer.echo(json.dumps({"offers": [_row(each) for each in offers], "advice": remarks}, indent=1))
    else:
        _show(_offer_table(site, offers), *remarks)


def _row(offer: "Offer") -> dict[str, Any]:
    return dataclasses.asdict(offer) | {"per_user": offer.per_user, "per_device": offer.per_device}


def _offer_table(site: "Site", offers: Sequence["Offer"]) -> Table["Offer"]:
    work = site.workload
    title = (
        f"{work.target.name} ({work.target.weights}) with {work.draft.name} on {site.device.name}, "
        f"acceptance {work.pair.acceptance:.2f}, batch {work.batch}"
    )
    in_all = [Column["Offer"]("tok/s", lambda each: f"{each.rate:.0f}")] if work.batch > 1 else []
    columns = [
        Column["Offer"]("way", lambda each: each.way, is_text=True),
        Column["Offer"]("TP", lambda each: str(each.tp)),
        Column["Offer"]("devices", lambda each: str(each.num_devices)),
        Column["Offer"]("K", lambda each: str(each.lookahead or "")),
        Column["Offer"]("tok/s a user", lambda each: f"{each.per_user:.1f}"),
        *in_all,
        Column["Offer"]("roof", lambda each: f"{each.roof:.0f}"),
        Column["Offer"]("of it", lambda each: f"{each.rate / each.roof:.2f}"),
        Column["Offer"]("tok/s a device", lambda each: f"{each.per_device:.1f}"),
    ]
    best = max(offers, key=lambda each: each.per_user)
    rows = sorted(offers, key=lambda each: (each.num_devices, each.rate))
    return Table(columns, rows, title, lambda each: "bold green" if each is best else "")


def _device_table() -> Table[tuple[str, "Device"]]:
    from ssd.planning import hardware

    columns = (
        Column[tuple[str, "Device"]]("name", lambda row: row[0], is_text=True),
        Column[tuple[str, "Device"]]("device", lambda row: row[1].name, is_text=True),
        Column[tuple[str, "Device"]]("GB/s", lambda row: f"{row[1].bandwidth / 1e9:g}"),
        Column[tuple[str, "Device"]]("bf16 TFLOP/s", lambda row: f"{row[1].flops / 1e12:g}"),
        Column[tuple[str, "Device"]]("GB", lambda row: f"{row[1].memory / 1e9:g}"),
        Column[tuple[str, "Device"]]("link GB/s", lambda row: f"{row[1].link / 1e9:g}"),
    )
    return Table(columns, list(hardware.built_in().items()), "devices")


def _model_table() -> Table[str]:
    from ssd.planning import models

    known = models.built_in()
    columns = (
        Column[str]("model", str, is_text=True),
        Column[str]("params", lambda name: f"{known[name]['params']:g} B"),
        Column[str]("layers", lambda name: f"{known[name]['layers']:g}"),
    )
    return Table(columns, list(known), "models")


def _show(*parts: Table[Any] | str) -> None:
    from rich.console import Console

    from ssd.cli.console import shown

    console = Console(highlight=False)
    for part in parts:
        console.print(shown(part) if isinstance(part, Table) else part)
