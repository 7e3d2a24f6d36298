"""Says in one line whether SSD pays for a pair on GPUs of one kind. Knows numbers only."""

from dataclasses import replace

from ssd.planning.deployment import Site
from ssd.planning.rounds import ar_rate, best_sd, best_ssd
from ssd.planning.times import Forward, PairTimes

_TAKES_TURNS = 2.0
"""Slowdown of two processes on one GPU that runs the kernels of one at a time, and both always have some."""


def verdict(
    site: Site, *, num_devices: int, has_mps: bool = False, draft_step: float | None = None
) -> tuple[bool, str]:
    """Whether it pays, and a line that says why. Compares with vLLM alone and with its own speculation.

    `num_devices`: 1: target and draft share it. `has_mps`: kernels of both run side by side there.
    `draft_step`: measured seconds of a draft step.
    """
    work = site.workload
    alone = site.times(1, site.draft_device)
    plain = ar_rate(alone, batch=work.batch)
    theirs = best_sd(alone, work.pair.acceptance, batch=work.batch).rate / plain
    times = alone if draft_step is None else _with_draft_step(alone, draft_step)
    step = times.draft.seconds(1)
    if num_devices == 1:
        times = sharing(times, has_mps=has_mps)
    ours = best_ssd(times, work.pair, batch=work.batch).rate / plain
    pays = ours > max(1.0, theirs)
    where = (
        f"the same GPU, {'with' if has_mps else 'without'} MPS" if num_devices == 1 else "a GPU of its own"
    )
    otherwise = "" if pays else f"; use vLLM {'with its own speculation' if theirs > 1 else 'alone'} instead"
    verifying = 1e3 * times.target.seconds(1)
    return pays, (
        f"{'pays' if pays else 'does not pay'}: {ours:.2f} × vLLM alone with the draft on {where}, and "
        f"vLLM's own speculation {theirs:.2f} ×, if a verification takes {verifying:.1f} ms (arithmetic), a "
        f"draft step {1e3 * step:.1f} ms ({'arithmetic' if draft_step is None else 'measured'}), and "
        f"{work.pair.acceptance:.2f} of first guesses are right{otherwise}"
    )


def about_sharing(site: Site) -> list[str]:
    """Whether one device for target and draft pays; nothing if they do not fit there."""
    if not site.fits(1, beside_draft=True):
        return []
    words = (verdict(site, num_devices=1, has_mps=has_mps)[1] for has_mps in (True, False))
    return [f"Sharing one device {each}." for each in words]


def _with_draft_step(times: PairTimes, seconds: float) -> PairTimes:
    floor = min(times.draft.floor, seconds)
    return replace(times, draft=Forward(floor=floor, overhead=seconds - floor))


def sharing(times: PairTimes, *, has_mps: bool) -> PairTimes:
    """The times of a target and a draft that compute on one device all the time.

    Side by side, they share its bandwidth: each slows down by what both want of it, if that is more than all.
    """
    wanted = sum(each.floor / (each.floor + each.overhead) for each in (times.target, times.draft))
    slowdown = max(1.0, wanted) if has_mps else _TAKES_TURNS
    return replace(times, target_beside=slowdown, draft_beside=slowdown)
