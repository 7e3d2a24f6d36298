"""Tables of `ssd plan`, for people."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ssd.planning import hardware, models
from ssd.planning.deployment import Offer, Site
from ssd.planning.fleet import BatchRow, ShareRow, SpeedRow
from ssd.planning.validation import Row


def replica(site: Site, offers: Sequence[Offer]) -> Table:
    work = site.workload
    title = (
        f"{work.target.name} ({work.target.weights}) with {work.draft.name} on {site.device.name}, "
        f"acceptance {work.acceptance:.2f}, batch {offers[0].batch}"
    )
    table = Table("way", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    batched = offers[0].batch > 1
    for name in ("TP", "devices", "K", "tok/s a user", *(["tok/s"] if batched else []), "roof", "of it"):
        table.add_column(name, justify="right")
    for name in ("tok/s a device", "$ a million"):
        table.add_column(name, justify="right")
    best = max(offers, key=lambda each: each.per_user)
    for each in sorted(offers, key=lambda each: (each.num_devices, each.rate)):
        table.add_row(
            each.way,
            str(each.tp),
            f"{each.num_devices:g}",
            str(each.lookahead or ""),
            f"{each.per_user:.1f}",
            *([f"{each.rate:.0f}"] if batched else []),
            f"{each.roof:.0f}",
            f"{each.rate / each.roof:.2f}",
            f"{each.per_device:.1f}",
            _dollars(each.per_million),
            style="bold green" if each is best else None,
        )
    return table


def batches(rows: Sequence[BatchRow], tp: int) -> Table:
    table = Table(
        title=f"tokens/s for each user, and for each device: target on {tp}, SSD's draft on one more",
        title_justify="left",
    )
    for name in ("batch", "AR", "SD", "SSD", "AR a device", "SD a device", "SSD a device", "SSD pays"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.batch),
            *(_each(offer, "per_user") for offer in (row.ar, row.sd, row.ssd)),
            *(_each(offer, "per_device") for offer in (row.ar, row.sd, row.ssd)),
            "in speed and per device"
            if row.pays_per_device and row.pays_in_speed
            else "in speed"
            if row.pays_in_speed
            else "no",
        )
    return table


def fleets(rows: Sequence[SpeedRow], tokens: float) -> Table:
    table = Table(
        title=f"the cheapest fleet for {tokens:,.0f} tokens/s, by the speed each user must get",
        title_justify="left",
    )
    for name in (
        "tokens/s a user",
        "way",
        "TP",
        "batch",
        "replicas",
        "draft devices",
        "devices",
        "$ an hour",
        "$ a million",
        "next best way",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        if row.fleet is None:
            table.add_row(f"{row.speed:g}", "none", *[""] * 7, "faster devices, or a better draft")
            continue
        offer = row.fleet.offer
        table.add_row(
            f"{row.speed:g}",
            offer.way,
            str(offer.tp),
            str(offer.batch),
            f"{row.fleet.num_replicas:,}",
            f"{row.fleet.num_drafts:,}",
            f"{row.fleet.num_devices:,}",
            "" if row.fleet.price is None else f"{row.fleet.price:,.0f}",
            _dollars(offer.per_million),
            "none"
            if row.next_best is None
            else f"{row.next_best.way}, {_dollars(row.next_best.per_million)}",
        )
    return table


def shared_drafts(rows: Sequence[ShareRow]) -> Table:
    title = "draft devices for so many targets of one text each, trees of several in a forward"
    table = Table(title=title, title_justify="left")
    for name in ("targets", "draft devices"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(f"{row.num_targets:,}", f"{row.num_drafts:,}")
    return table


def validation(rows: Sequence[Row]) -> list[Table]:
    tables: dict[str, Table] = {}
    for row in rows:
        if row.group not in tables:
            tables[row.group] = Table("what", "given", title=row.group, title_justify="left")
            for name in ("measured", "predicted", "error", "aim"):
                tables[row.group].add_column(name, justify="right")
        tables[row.group].add_row(
            row.what,
            row.given,
            f"{row.measured:.4g}",
            f"{row.predicted:.4g}",
            f"{row.error:+.1%}",
            f"±{row.limit:.0%}",
            style=None if row.is_within else "bold yellow",
        )
    return list(tables.values())


def show_known() -> None:
    table = Table("name", "device", title="devices", title_justify="left")
    for name in ("GB/s", "bf16 TFLOP/s", "GB", "link GB/s", "$ an hour"):
        table.add_column(name, justify="right")
    for key, each in hardware.built_in().items():
        figures = (each.bandwidth / 1e9, each.flops / 1e12, each.memory / 1e9, each.link / 1e9)
        table.add_row(key, each.name, *(f"{figure:g}" for figure in figures), _dollars(each.price))
    sizes = Table("model", title="models", title_justify="left")
    for name in ("params", "layers"):
        sizes.add_column(name, justify="right")
    for key, row in models.built_in().items():
        sizes.add_row(key, f"{row['params']:g} B", f"{row['layers']:g}")
    Console().print(table, sizes)


def _each(offer: Offer | None, name: str) -> str:
    return "" if offer is None else f"{getattr(offer, name):.1f}"


def _dollars(amount: float | None) -> str:
    return "" if amount is None else f"{amount:.2f}"
