"""Detects unreliable measurements: impossible ratios, and load from other programs.

Knows facts and what Linux says of its load; measures nothing. A ratio of forwards that take next to no time
is one of the host's work beside them, so only longer ones are judged.
"""

import os
from pathlib import Path

from ssd.tuning.measure import Facts

_LONG = 0.005
"""Seconds of a forward from which its ratios are judged."""
_MOST_BESIDE = 4.0
"""A forward beside the other model, as a multiple of one alone: two that share one core stay below."""
_MOST_SPREAD = 2.0
"""A forward on more cores, as a multiple of one on fewer."""
_BUSY = 0.25
"""Load for each core, before tuning adds its own."""
_STEAL = 7
"""Place of stolen time in /proc/stat's line of all processors."""
_STOLEN = 0.02
"""Share of the processors' time that the host of a virtual machine gave to others."""


def refuse_implausible(facts: Facts) -> None:
    """ValueError, before settings are chosen by it: something else ran on the machine."""
    found = [
        *([("the target on all cores, by its own", facts.spread, _MOST_SPREAD)] if _is_long(facts) else []),
        *(
            (f"{who} beside the other model, by alone (draft {precision})", ratio, _MOST_BESIDE)
            for precision, draft in facts.drafts.items()
            for who, ratio, seconds in (
                ("the target", draft.target_beside, facts.target_seconds[9]),
                ("the draft", draft.draft_beside, draft.seconds[12]),
            )
            if seconds >= _LONG
        ),
    ]
    wrong = [f"{what}: {ratio:.2f} × as long" for what, ratio, most in found if ratio > most]
    if wrong:
        raise ValueError(
            f"these measurements cannot be right: {'; '.join(wrong)}. Other programs computed at the same "
            "time. Nothing is written: end them, or tune when the machine is quiet"
        )


def _is_long(facts: Facts) -> bool:
    return facts.target_seconds[9] >= _LONG


class LoadWatch:
    """Watches for load from other programs while tuning runs."""

    def __init__(self) -> None:
        self._busy = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0
        self._times = _processor_times()

    def at_the_start(self) -> str:
        """A warning about load before tuning; empty if the machine was idle."""
        if self._busy <= _BUSY:
            return ""
        return (
            f"other programs compute on this machine (load {self._busy:.2f} for each core): what is measured "
            "now may not hold when they end"
        )

    def meanwhile(self) -> str:
        """A warning about stolen CPU time during tuning; empty if there was none or it is unknown."""
        before, now = self._times, _processor_times()
        passed = sum(now) - sum(before)
        stolen = (now[_STEAL] - before[_STEAL]) / passed if passed > 0 and len(now) > _STEAL else 0.0
        if stolen <= _STOLEN:
            return ""
        return (
            f"{stolen:.0%} of the processors' time went to other virtual machines meanwhile: measure again "
            "to see whether the choice stays"
        )


def _processor_times() -> list[int]:
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return []
    # User, nice, system, idle, waiting, interrupts (two kinds), stolen; guests are in user and nice.
    return [int(each) for each in line.split()[1:9]]
