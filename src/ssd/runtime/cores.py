"""The CPU cores of this process: lists them, splits them between target and draft, and pins threads.

Knows the system's list of cores and torch's number of threads. Does not know models, modes or settings. A
"core" is a logical CPU: with SMT, two or more siblings share each physical core. On systems without affinity
(macOS), /proc or /sys, the number of cores sets the number of threads, and the system places them.
"""

import contextlib
import functools
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"
_SIBLINGS = ("core_cpus_list", "thread_siblings_list")
"""The new name and the old one of the same list."""
_THREADS = Path("/proc/self/task")


def can_pin() -> bool:
    return hasattr(os, "sched_setaffinity") and hasattr(os, "sched_getaffinity")


def _cores_of_thread() -> list[int]:
    if can_pin():
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


_CORES_AT_START = _cores_of_thread()
_THREADS_AT_START = torch.get_num_threads()


def usable_cores() -> list[int]:
    """The cores this process was started on; pinning it later does not change them."""
    return _CORES_AT_START


def physical_cores() -> list[tuple[int, ...]]:
    """The usable cores grouped by physical core; each alone where the system does not list siblings."""
    siblings = defaultdict[str, list[int]](list)
    for core in usable_cores():
        siblings[_siblings_of(core)].append(core)
    return [tuple(each) for each in siblings.values()]


def _siblings_of(core: int) -> str:
    """A text that is the same for siblings and differs otherwise."""
    for name in _SIBLINGS:
        with contextlib.suppress(OSError):
            if listed := Path(_TOPOLOGY.format(core), name).read_text().strip():
                return listed
    return str(core)


@dataclass(frozen=True, slots=True)
class CoreSplit:
    """Disjoint cores for target and draft; one side is empty if there are too few."""

    target: tuple[int, ...]
    draft: tuple[int, ...]

    @property
    def shares_physical_cores(self) -> bool:
        return any(
            not set(siblings).isdisjoint(self.target) and not set(siblings).isdisjoint(self.draft)
            for siblings in physical_cores()
        )


def share_out(*, target: Sequence[int] = (), draft: Sequence[int] = ()) -> CoreSplit:
    """Splits cores between target and draft; a side given as an argument is kept, the other gets the rest.

    Uses one sibling of each physical core: a forward is bound by memory and by units that siblings share, so
    a second thread gains next to nothing, and every barrier waits for one more. The idle siblings take the
    rest of the system's work. Siblings are split only if there is a single physical core.
    """
    if target or draft:
        others = _apart_from((*target, *draft))
        return CoreSplit(tuple(target) or others, tuple(draft) or others)
    groups = physical_cores()
    cores = tuple(siblings[0] for siblings in groups) if len(groups) > 1 else groups[0]
    # A draft is a fraction of the target, and its step has to take no longer than a verification.
    num_draft = max(1, len(cores) // 4) if len(cores) > 1 else 0
    num_target = len(cores) - num_draft
    return CoreSplit(cores[:num_target], cores[num_target:])


def _apart_from(taken: Sequence[int]) -> tuple[int, ...]:
    """One sibling of each untouched physical core; if there is none, of each partly taken one."""
    groups = physical_cores()
    free = [[core for core in siblings if core not in taken] for siblings in groups]
    whole = [left[0] for left, siblings in zip(free, groups, strict=True) if len(left) == len(siblings)]
    return tuple(whole or (left[0] for left in free if left))


def cores_beside(taken: Sequence[int]) -> tuple[int, ...]:
    """Cores for background work: those not taken, or all if all are taken."""
    return tuple(set(usable_cores()) - set(taken)) or tuple(usable_cores())


def pin_to_cores(cores: Sequence[int]) -> None:
    """Pins this thread and threads it starts later to these cores; torch gets one thread per core."""
    _stay_on(cores)
    torch.set_num_threads(len(cores))


def move_to_cores(cores: Sequence[int]) -> None:
    """Like pin_to_cores, but also moves running threads; no cores: undoes the pinning."""
    _stay_on(cores or usable_cores())
    _place(_threads(), cores or usable_cores())
    torch.set_num_threads(len(cores) or _THREADS_AT_START)


@contextlib.contextmanager
def restore_cores_on_error() -> Iterator[None]:
    """On an error, restores the cores of this thread and of threads started meanwhile."""
    cores, num_threads, older = _cores_of_thread(), torch.get_num_threads(), _threads()
    try:
        yield
    except BaseException:
        if cores != _cores_of_thread():
            _place({0, *_threads()} - older, cores)
        torch.set_num_threads(num_threads)
        raise


def _stay_on(cores: Sequence[int]) -> None:
    if not can_pin():
        unusable = set(cores) - set(usable_cores())
        _warn_that_pinning_is_unsupported()
    else:
        try:
            os.sched_setaffinity(0, cores)
            unusable = set(cores) - os.sched_getaffinity(0)
        except OSError:
            unusable = set(cores)
    if unusable:
        raise ValueError(f"cores {sorted(unusable)} are not usable; use cores from {usable_cores()}")


@functools.cache
def _warn_that_pinning_is_unsupported() -> None:
    logger.warning(
        "this system cannot pin processes to cores: "
        "the chosen cores only set the number of threads, and the system places them"
    )


def _threads() -> set[int]:
    return {int(thread.name) for thread in _THREADS.glob("*")}


def _place(threads: set[int], cores: Sequence[int]) -> None:
    if can_pin():
        for thread in threads:
            # The thread may have ended.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, cores)
