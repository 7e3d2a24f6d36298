"""The CPU cores of this process: which there are, who gets which, and how to stay on them.

Knows what the system tells of cores, and torch's number of threads; not models, modes or settings. A
"core" is what the system numbers: a processor with SMT has two or more such siblings on each physical core.
Systems without affinity (macOS) and without /proc or /sys are served too: there the number of cores
decides the number of threads, and where these run is the system's affair.
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
    """The usable cores, siblings together; where the system does not tell, each is its own."""
    siblings = defaultdict[str, list[int]](list)
    for core in usable_cores():
        siblings[_siblings_of(core)].append(core)
    return [tuple(each) for each in siblings.values()]


def _siblings_of(core: int) -> str:
    """Text that siblings have in common, whatever it says."""
    for name in _SIBLINGS:
        with contextlib.suppress(OSError):
            if listed := Path(_TOPOLOGY.format(core), name).read_text().strip():
                return listed
    return str(core)


@dataclass(frozen=True, slots=True)
class CoreSplit:
    """Cores of target and draft, never the same; one side is empty where there are not enough."""

    target: tuple[int, ...]
    draft: tuple[int, ...]

    @property
    def shares_physical_cores(self) -> bool:
        return any(
            not set(siblings).isdisjoint(self.target) and not set(siblings).isdisjoint(self.draft)
            for siblings in physical_cores()
        )


def share_out(*, target: Sequence[int] = (), draft: Sequence[int] = ()) -> CoreSplit:
    """Who gets which cores; a side that is given keeps what it has, the other gets of the rest.

    One core of each physical core: a forward waits for memory and for units that siblings share, so a
    second thread there brings next to nothing, and every barrier waits for one more. What stays free takes
    the rest of the system off the cores that compute. Siblings are parted only if there is nothing else.
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
    """One of each physical core that nobody has; if there is none, of each that is taken in part."""
    groups = physical_cores()
    free = [[core for core in siblings if core not in taken] for siblings in groups]
    whole = [left[0] for left, siblings in zip(free, groups, strict=True) if len(left) == len(siblings)]
    return tuple(whole or (left[0] for left in free if left))


def cores_beside(taken: Sequence[int]) -> tuple[int, ...]:
    """For work that is to be in nobody's way; where all are taken, all."""
    return tuple(set(usable_cores()) - set(taken)) or tuple(usable_cores())


def pin_to_cores(cores: Sequence[int]) -> None:
    """Keeps this thread, and those it starts from here on, on these cores; torch gets a thread for each."""
    _stay_on(cores)
    torch.set_num_threads(len(cores))


def move_to_cores(cores: Sequence[int]) -> None:
    """As pin_to_cores, with the threads that run already; no cores: as many as at the start."""
    _stay_on(cores or usable_cores())
    _place(_threads(), cores or usable_cores())
    torch.set_num_threads(len(cores) or _THREADS_AT_START)


@contextlib.contextmanager
def restore_cores_on_error() -> Iterator[None]:
    """What fails within leaves this thread, and those born meanwhile, where it was at the beginning."""
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
        _say_that_nobody_is_pinned()
    else:
        try:
            os.sched_setaffinity(0, cores)
            unusable = set(cores) - os.sched_getaffinity(0)
        except OSError:
            unusable = set(cores)
    if unusable:
        raise ValueError(
            f"cores {sorted(unusable)} are not usable here; usable are {usable_cores()}: choose among these"
        )


@functools.cache
def _say_that_nobody_is_pinned() -> None:
    logger.warning(
        "this system has no way to keep a process on chosen cores: "
        "they only say how many threads compute, and the system decides where"
    )


def _threads() -> set[int]:
    return {int(thread.name) for thread in _THREADS.glob("*")}


def _place(threads: set[int], cores: Sequence[int]) -> None:
    if can_pin():
        for thread in threads:
            # It may end meanwhile.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, cores)
