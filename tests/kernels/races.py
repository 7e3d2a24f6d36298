"""Finds races in kernels while Triton's interpreter runs them, in which programs of a launch take turns.

Each program logs the addresses that it reads and writes; when a launch ends, these are compared:

- Between programs, an address that one writes may be touched by no other. Atomic additions may meet.
- Inside a program, where threads run side by side, nothing may read or write again what was written since
  the last barrier, and no write may follow a read without a barrier. A write that changes nothing is
  harmless. So is one by the lane that has read, if no other thread holds the same lane, and one in a program
  of a single warp, whose threads read together.

Programs run in random order, so that a result that depends on it differs. Knows addresses; does not know
what a kernel computes, nor the memory order and the layouts of a GPU.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from itertools import combinations, groupby, product
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import triton
from numpy.typing import NDArray
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

_WARP = 64
"""Threads of the widest warp."""
_TRITON = str(Path(triton.__file__).parent)


class Kind(Enum):
    READ = auto()
    WRITE = auto()
    ATOMIC = auto()


@dataclass(frozen=True, slots=True)
class Access:
    kind: Kind
    line: str
    program: tuple[int, ...]
    num_barriers: int
    """That the program has passed before."""
    num_lanes: int
    addresses: NDArray[np.uint64]
    lanes: NDArray[np.int64]
    changes: NDArray[np.bool_]
    """Of each address: whether the write changes it."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One lane of an access, at one address."""

    access: Access
    lane: int
    changes: bool


@dataclass(frozen=True, slots=True)
class Conflict:
    kernel: str
    what: str
    first: str
    second: str
    """Lines of source."""


class RaceLog:
    def __init__(self, seed: int) -> None:
        self.conflicts = Counter[Conflict]()
        self.launches = Counter[str]()
        self._random = random.Random(seed)
        self._accesses: list[Access] = []
        self._waiting: list[tuple[int, ...]] = []
        self._program: tuple[int, ...] = ()
        self._num_barriers = 0

    def begin(self, grid: tuple[int, ...]) -> None:
        """Before the programs of a launch."""
        self._accesses, self._waiting = [], list(product(*map(range, grid)))
        self._random.shuffle(self._waiting)

    def next_program(self) -> tuple[int, ...]:
        self._program, self._num_barriers = self._waiting.pop(), 0
        return self._program

    def pass_barrier(self) -> None:
        self._num_barriers += 1

    def add(self, kind: Kind, pointers: Any, mask: Any, changes: NDArray[np.bool_] | None = None) -> None:
        lanes = np.flatnonzero(np.broadcast_to(mask.data, pointers.data.shape))
        addresses = pointers.data.ravel()[lanes]
        changed = np.ones(len(lanes), np.bool_) if changes is None else changes.ravel()[lanes]
        done = self._program, self._num_barriers, pointers.data.size, addresses, lanes, changed
        self._accesses.append(Access(kind, _line(), *done))

    def end(self, kernel: str, num_warps: int) -> None:
        """After the programs of a launch: notes their conflicts."""
        self.launches[kernel] += 1
        for touches in _touches(self._accesses):
            for first, second in combinations(touches, 2):
                if what := _conflict(first, second, num_warps):
                    self.conflicts[Conflict(kernel, what, first.access.line, second.access.line)] += 1
        self._accesses = []


def _touches(accesses: list[Access]) -> Iterator[list[Touch]]:
    """Of each address that is written and touched again: who touches it, in order."""
    writes = [each.addresses for each in accesses if each.kind is not Kind.READ]
    if not writes:
        return
    written = np.unique(np.concatenate(writes))
    columns = list[NDArray[np.int64]]()
    for number, access in enumerate(accesses):
        place = np.searchsorted(written, access.addresses).clip(max=len(written) - 1)
        indices = np.flatnonzero(written[place] == access.addresses)
        columns.append(np.stack((place[indices], np.full(len(indices), number), indices)))
    found = np.concatenate(columns, axis=1)
    found = found[:, np.bincount(found[0])[found[0]] > 1]
    for _, group in groupby(sorted(found.T.tolist()), key=lambda each: each[0]):
        touched = [(accesses[number], index) for _place, number, index in group]
        yield [Touch(each, int(each.lanes[index]), bool(each.changes[index])) for each, index in touched]


def _conflict(first: Touch, second: Touch, num_warps: int) -> str:
    """What is wrong with two touches of one address, in this order; empty: nothing."""
    mine, other = first.access, second.access
    kinds = (mine.kind, other.kind)
    if mine.kind is other.kind is not Kind.WRITE:
        return ""
    if mine.program != other.program:
        return "two programs write" if Kind.READ not in kinds else "one program writes what another reads"
    if mine.num_barriers != other.num_barriers or not (first.changes and second.changes):
        return ""
    if mine.kind is not Kind.READ:
        return "read back without a barrier" if other.kind is Kind.READ else "written twice without a barrier"
    is_own_lane = (first.lane, mine.num_lanes) == (second.lane, other.num_lanes)
    if num_warps == 1 or (is_own_lane and mine.num_lanes >= num_warps * _WARP):
        return ""
    return "written without a barrier after a read"


def _line() -> str:
    """The line of source that the kernel is at."""
    frame: FrameType | None = sys._getframe(1)
    while frame and (frame.f_code.co_filename.startswith(_TRITON) or frame.f_globals is globals()):
        frame = frame.f_back
    if frame is None:
        return "?"
    path = frame.f_code.co_filename
    return f"{Path(path).name}: {getline(path, frame.f_lineno).strip()}"


@contextmanager
def logged_races(seed: int = 0) -> Iterator[RaceLog]:
    """Logs all launches inside the context."""
    log, builder = RaceLog(seed), InterpreterBuilder
    load, store, add = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw
    set_grid_dim, launch = builder.set_grid_dim, GridExecutor.__call__

    def logged_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        log.add(Kind.READ, pointers, mask)
        return load(self, pointers, mask, *rest)

    def logged_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        old, new = load(self, pointers, mask, None, None, None, False).data, value.data
        is_equal = (old == new) | ((old != old) & (new != new))
        log.add(Kind.WRITE, pointers, mask, np.broadcast_to(~is_equal, pointers.data.shape))
        return store(self, pointers, value, mask, *rest)

    def logged_add(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        log.add(Kind.ATOMIC, pointers, mask)
        return add(self, operation, pointers, value, mask, *rest)

    def begin(self: Any, *grid: int) -> None:
        set_grid_dim(self, *grid)
        log.begin(grid)

    def next_program(self: Any, *_: int) -> None:
        self.grid_idx = log.next_program()

    def whole_launch(self: Any, *args: Any, **options: Any) -> None:
        launch(self, *args, **options)
        log.end(self.fn.__name__, options.get("num_warps", 4))

    def not_logged(*_: Any) -> None:
        raise NotImplementedError("the race check does not know atomic compare-and-swap")

    changes = {
        "create_masked_load": logged_load,
        "create_masked_store": logged_store,
        "create_atomic_rmw": logged_add,
        "create_atomic_cas": not_logged,
        "create_barrier": lambda self: log.pass_barrier(),
        "set_grid_dim": begin,
        "set_grid_idx": next_program,
    }
    with ExitStack() as stack:
        for name, change in changes.items():
            stack.enter_context(patch.object(builder, name, change))
        stack.enter_context(patch.object(GridExecutor, "__call__", whole_launch))
        yield log
