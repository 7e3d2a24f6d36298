"""Describes a plan in sentences: what an extra device for the draft gains. Knows numbers only."""

from collections.abc import Sequence

from ssd.planning.deployment import Offer, Site


def about_extra_device(offers: Sequence[Offer]) -> list[str]:
    """What the draft's device gains, compared with other uses of it."""
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
            f"tokens/s, SSD on {best.num_devices} gives {best.rate:.0f}."
        )
    share = best.rate / best.roof
    said.append(f"SSD reaches {share:.2f} of its roof, {best.roof:.0f} tokens/s.")
    return said


def about_room(site: Site, num_devices: int) -> list[str]:
    """Why some ways are not offered."""
    if num_devices > 1 and not site.device.link:
        return [f"Several {site.device.name} for one target: not offered, no link between them is known."]
    said = [
        f"No sd on {tp}: target and draft do not fit there together." for tp in site.without_sd(num_devices)
    ]
    if not site.draft_fits:
        said.append(f"No ssd: {site.workload.draft.name} has no room on {site.draft_device.name}.")
    return said


def about_times(site: Site) -> list[str]:
    """Sources of times that data sheets do not contain."""
    host = f"{1e3 * site.workload.host:.2f} ms a round" if site.workload.host else "not counted apart"
    return [f"Beside data sheets: {site.overheads.words}; the host {host}."]


def about_engines(offers: Sequence[Offer]) -> list[str]:
    """Which engine each kind of row applies to."""
    if all(each.tp == 1 for each in offers):
        return []
    return [
        "Rows with TP 1 are for either engine. Rows with TP above 1 are for vLLM as the target: ar is vLLM "
        "alone, sd its own speculation with a draft model, ssd our draft beside it (docs/vllm.md). This "
        "project's own target and draft have no tensor parallelism."
    ]
