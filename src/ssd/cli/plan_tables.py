"""Tables of `ssd plan`: which columns answer which question."""

from collections.abc import Sequence

from ssd.bench.tables import Column, Table
from ssd.planning import hardware, models
from ssd.planning.deployment import Offer, Site
from ssd.planning.fleet import BatchRow, ShareRow, SpeedRow
from ssd.planning.hardware import Device
from ssd.planning.pool import Pool, PoolPlan, PoolRow


def replica(site: Site, offers: Sequence[Offer]) -> Table[Offer]:
    work, batch = site.workload, offers[0].batch
    title = (
        f"{work.target.name} ({work.target.weights}) with {work.draft.name} on {site.device.name}, "
        f"acceptance {work.acceptance:.2f}, batch {batch}"
    )
    in_all = [Column[Offer]("tok/s", lambda each: f"{each.rate:.0f}")] if batch > 1 else []
    columns = [
        Column[Offer]("way", lambda each: each.way, is_text=True),
        Column[Offer]("TP", lambda each: str(each.tp)),
        Column[Offer]("devices", lambda each: f"{each.num_devices:g}"),
        Column[Offer]("K", lambda each: str(each.lookahead or "")),
        Column[Offer]("tok/s a user", lambda each: f"{each.per_user:.1f}"),
        *in_all,
        Column[Offer]("roof", lambda each: f"{each.roof:.0f}"),
        Column[Offer]("of it", lambda each: f"{each.rate / each.roof:.2f}"),
        Column[Offer]("tok/s a device", lambda each: f"{each.per_device:.1f}"),
        Column[Offer]("$ a million", lambda each: _dollars(each.per_million)),
    ]
    best = max(offers, key=lambda each: each.per_user)
    rows = sorted(offers, key=lambda each: (each.num_devices, each.rate))
    return Table(columns, rows, title, lambda each: "bold green" if each is best else "")


def batches(rows: Sequence[BatchRow], tp: int) -> Table[BatchRow]:
    columns = [
        Column[BatchRow]("batch", lambda row: str(row.batch)),
        *(_of_way(way, way.upper(), "per_user") for way in ("ar", "sd", "ssd")),
        *(_of_way(way, f"{way.upper()} a device", "per_device") for way in ("ar", "sd", "ssd")),
        Column[BatchRow]("SSD pays", _pays),
    ]
    title = f"tokens/s for each user, and for each device: target on {tp}, SSD's draft on one more"
    return Table(columns, rows, title)


def _of_way(way: str, title: str, figure: str) -> Column[BatchRow]:
    def cell(row: BatchRow) -> str:
        offer: Offer | None = getattr(row, way)
        return "" if offer is None else f"{getattr(offer, figure):.1f}"

    return Column(title, cell)


def _pays(row: BatchRow) -> str:
    if not row.pays_in_speed:
        return "no"
    return "in speed and per device" if row.pays_per_device else "in speed"


def fleets(rows: Sequence[SpeedRow], tokens: float) -> Table[SpeedRow]:
    title = f"the cheapest fleet for {tokens:,.0f} tokens/s, by the speed each user must get"
    heads = (
        "tokens/s a user", "way", "TP", "batch", "replicas", "draft devices", "devices", "$ an hour",
        "$ a million", "next best way",
    )  # fmt: skip
    found = {row.speed: _fleet_cells(row) for row in rows}
    columns = [
        Column[SpeedRow](head, lambda row, place=place: found[row.speed][place])  # type: ignore[misc]
        for place, head in enumerate(heads)
    ]
    return Table(columns, rows, title)


def _fleet_cells(row: SpeedRow) -> list[str]:
    if row.fleet is None:
        return [f"{row.speed:g}", "none", *[""] * 7, "faster devices, or a better draft"]
    fleet, offer, other = row.fleet, row.fleet.offer, row.next_best
    return [
        f"{row.speed:g}",
        offer.way,
        str(offer.tp),
        str(offer.batch),
        f"{fleet.num_replicas:,}",
        f"{fleet.num_drafts:,}",
        f"{fleet.num_devices:,}",
        "" if fleet.price is None else f"{fleet.price:,.0f}",
        _dollars(offer.per_million),
        "none" if other is None else f"{other.way}, {_dollars(other.per_million)}",
    ]


def shared_drafts(rows: Sequence[ShareRow]) -> Table[ShareRow]:
    columns = (
        Column[ShareRow]("targets", lambda row: f"{row.num_targets:,}"),
        Column[ShareRow]("draft devices", lambda row: f"{row.num_drafts:,}"),
    )
    title = "draft devices for so many targets of one text each, trees of several in a forward"
    return Table(columns, rows, title)


def pool(asked: Pool, plan: PoolPlan) -> Table[PoolRow]:
    columns = [
        Column[PoolRow]("targets a draft", lambda row: str(row.sharers)),
        Column[PoolRow]("drafts", lambda row: f"{row.num_drafts:,}"),
        Column[PoolRow]("rows a target", lambda row: str(row.offer.width)),
        Column[PoolRow]("step ms", lambda row: f"{1e3 * (row.forward + row.host):.2f}"),
        Column[PoolRow]("of it host", lambda row: f"{row.host / (row.forward + row.host):.2f}"),
        Column[PoolRow]("tok/s a user", lambda row: f"{row.per_user:.1f}"),
        Column[PoolRow]("devices", lambda row: f"{asked.num_targets * asked.tp + row.num_drafts:,}"),
        Column[PoolRow]("$ a million", lambda row: _dollars(row.per_million)),
    ]
    title = (
        f"{asked.num_targets:,} targets on {asked.tp} devices each, batch {asked.batch}, "
        f"and the drafts they share"
    )
    return Table(columns, plan.rows, title, lambda row: "bold green" if row is plan.best else "")


def devices() -> Table[tuple[str, Device]]:
    columns = (
        Column[tuple[str, Device]]("name", lambda row: row[0], is_text=True),
        Column[tuple[str, Device]]("device", lambda row: row[1].name, is_text=True),
        Column[tuple[str, Device]]("GB/s", lambda row: f"{row[1].bandwidth / 1e9:g}"),
        Column[tuple[str, Device]]("bf16 TFLOP/s", lambda row: f"{row[1].flops / 1e12:g}"),
        Column[tuple[str, Device]]("GB", lambda row: f"{row[1].memory / 1e9:g}"),
        Column[tuple[str, Device]]("link GB/s", lambda row: f"{row[1].link / 1e9:g}"),
        Column[tuple[str, Device]]("$ an hour", lambda row: _dollars(row[1].price)),
    )
    return Table(columns, list(hardware.built_in().items()), "devices")


def sizes() -> Table[str]:
    known = models.built_in()
    columns = (
        Column[str]("model", str, is_text=True),
        Column[str]("params", lambda name: f"{known[name]['params']:g} B"),
        Column[str]("layers", lambda name: f"{known[name]['layers']:g}"),
    )
    return Table(columns, list(known), "models")


def _dollars(amount: float | None) -> str:
    return "" if amount is None else f"{amount:.2f}"
