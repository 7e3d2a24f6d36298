"""A plan in words: what the figures of a site say about an extra device for the draft. Knows numbers only."""

from collections.abc import Sequence

from ssd.planning.deployment import TENSOR_PARALLEL, Offer, Site
from ssd.planning.fleet import BatchRow
from ssd.planning.pool import PoolPlan


def about_extra_device(offers: Sequence[Offer]) -> list[str]:
    """Of the fastest SSD: what its draft's device brings, beside what else it could have been used for."""
    working_ahead = [each for each in offers if each.way == "ssd"]
    if not working_ahead:
        return ["No SSD: there is no device left for the draft beside the target's."]
    best = max(working_ahead, key=lambda each: each.per_user)
    plain = [each for each in offers if each.tp == best.tp and each.way != "ssd"]
    rival = max(plain, key=lambda each: each.rate)
    gain, cost = best.rate / rival.rate, best.num_devices / rival.num_devices
    verdict = "pays" if gain > cost else "does not pay"
    said = [
        f"One more device for the draft: {gain:.2f} × the speed of {rival.way} on {rival.tp}, for {cost:.2f} "
        f"× the devices. Per device it {verdict}: {best.per_device:.1f} tokens/s against "
        f"{rival.per_device:.1f}."
    ]
    wider = [each for each in offers if each.way != "ssd" and each.tp > best.tp]
    if wider:
        other = max(wider, key=lambda each: each.rate)
        said.append(
            f"More tensor parallelism instead: {other.way} on {other.tp} devices gives {other.rate:.0f} "
            f"tokens/s, SSD on {best.num_devices:.0f} gives {best.rate:.0f}."
        )
    share = best.rate / best.roof
    said.append(f"SSD reaches {share:.2f} of its roof, {best.roof:.0f} tokens/s.")
    return said


def about_room(site: Site, num_devices: int, batch: int) -> list[str]:
    """Which ways a reader would look for, and why they are not there."""
    if num_devices > 1 and not site.device.link:
        return [f"Several {site.device.name} for one target: not offered, no link between them is known."]
    cramped = [
        tp
        for tp in TENSOR_PARALLEL
        if tp <= num_devices
        and site.fits(tp, batch, beside_draft=False)
        and not site.fits(tp, batch, beside_draft=True)
    ]
    said = [f"No sd on {tp}: target and draft have no room there together." for tp in cramped]
    if not site.draft_fits(batch):
        said.append(f"No ssd: {site.workload.draft.name} has no room on {site.draft_device.name}.")
    return said


def about_batches(rows: Sequence[BatchRow]) -> list[str]:
    """Where working ahead stops paying."""
    slower = [row.batch for row in rows if row.ssd is not None and not row.pays_in_speed]
    dearer = [row.batch for row in rows if row.ssd is not None and not row.pays_per_device]
    said = [
        f"From a batch of {slower[0]} on SSD is no faster than the best of the others."
        if slower
        else "SSD is the fastest at every batch that a draft step can serve."
    ]
    if dearer:
        said.append(
            f"From a batch of {dearer[0]} on its extra device no longer pays for itself in tokens per device."
        )
    return said


def about_times(site: Site) -> list[str]:
    """Where what is no data sheet comes from."""
    host = f"{1e3 * site.workload.host:.2f} ms a round" if site.workload.host else "not counted apart"
    return [f"Beside data sheets: {site.overheads.words}; the host {host}."]


def about_pool(plan: PoolPlan) -> list[str]:
    best, first = plan.best, plan.limits[0]
    return [
        f"Cheapest: a draft for every {best.sharers} targets, {best.num_drafts:,} in all.",
        f"What breaks first: {first.what}, beyond {first.most} targets a draft. Then: {first.remedy}.",
        f"A round trip to the draft that is longer than a verification, {1e3 * plan.longest_trip:.1f} ms, "
        "costs hits.",
    ]


def about_engines(offers: Sequence[Offer]) -> list[str]:
    """Which engine each kind of row stands for: a plan must not promise what no engine does."""
    if all(each.tp == 1 for each in offers):
        return []
    return [
        "Rows with TP 1 are for either engine. Rows with TP above 1 are for vLLM as the target: ar is vLLM "
        "alone, sd its own speculation with a draft model, ssd our draft beside it (docs/vllm.md). This "
        "project's own target and draft have no tensor parallelism."
    ]
