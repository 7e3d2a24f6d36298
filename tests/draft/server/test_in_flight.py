"""With a step in flight the host knows the step before. What happens meanwhile is not lost or done twice."""

import random
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import pytest

from benchmarks.ruled import VOCAB, RuledModel, device_steps, shape_of
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.device_steps import DeviceSteps, QueuedStep
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.server.steps import GrowthResult, StepInput
from ssd.draft.server.tenants import RowAccounting, StepDemand, Tenants
from ssd.draft.tree.tables import Shape
from ssd.kvcache.block_manager import BlockManager
from tests.runtime.recording import RunAgain

LONGEST = 600


def ticking() -> Callable[[], float]:
    ticks = count()
    return lambda: next(ticks) * 1e-3


def scheduler_with(shape: Shape, num_blocks: int, *, depth: int = 1) -> DraftScheduler:
    steps = device_steps(RuledModel(), shape, RunAgain(), depth=depth)
    return DraftScheduler(
        steps, BlockManager(num_blocks, shape.block), HostLimits(2048, LONGEST), clock=ticking()
    )


def session_of(number: int, text: Sequence[int], sampling: Sampling | None = None) -> DraftSession:
    opening = Open(number, 1, pack_ints(text), len(text), LONGEST, 8, sampling or Sampling(seed=number))
    return DraftSession(opening, max_len=LONGEST, vocab_size=VOCAB)


def text_of(length: int, seed: int) -> list[int]:
    drawn = random.Random(seed)
    return [2 + drawn.randrange(VOCAB - 2) for _ in range(length)]


def arrive(sessions: Sequence[DraftSession]) -> None:
    for each in sessions:
        each.note_arrival(each.num_sent)


def turns_of_evictions(depth: int) -> list[int]:
    scheduler, found = scheduler_with(shape_of(8, 8, width=8, slots=32), 8, depth=depth), list[int]()
    sessions = {number: session_of(number, text_of(15, number)) for number in range(8)}
    for each in sessions.values():
        scheduler.open(each)
    by_row = {each.row: each for each in sessions.values()}
    for _ in range(6):
        scheduler.grow()
        arrive([*by_row.values()])
    for each in by_row.values():
        scheduler.advance(each, 1, [3, 4])
    for turn in range(12):
        scheduler.grow()
        arrive([*by_row.values()])
        if scheduler.is_starved and (gone := scheduler.admission.for_others()) is not None:
            scheduler.close(by_row.pop(gone))
            found.append(turn)
    return found


def test_one_session_is_evicted_where_one_is_enough() -> None:
    """The step that an eviction made possible is in flight when the next one could be considered."""
    alone = turns_of_evictions(depth=0)
    assert alone
    assert len(turns_of_evictions(depth=1)) == len(alone)


def test_a_row_that_changed_hands_costs_its_new_tenant_nothing() -> None:
    tenants = Tenants(3, {})
    tenants.enter(1, "gone")
    tenants.enter(2, "present")
    # In flight is a step that reads 2,048 tokens of row 1.
    tenants.leave(1, "gone")
    tenants.enter(1, "new")
    none = np.zeros(4, np.int64)
    result = GrowthResult(
        np.zeros((0, 13), np.int32), np.array([2]), np.array([False]), none[:0], np.array([0, 50, 1, 0]), none
    )
    demand = StepDemand(result, none, np.array([True, False, True, True]))
    RowAccounting(tenants).settle(demand, [(1, 2048)], [1])
    assert tenants.num_had("new") == 0
    assert tenants.num_had("present") == 1
    # It wanted none of that step's rows either, so nobody went short and nobody owes.
    assert not tenants.used.any()


def test_a_text_that_took_over_anothers_blocks_goes_on_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before was launched when nothing of the text was read; it ends when all but a token is."""
    may_grow, launch = list[bool](), DeviceSteps.launch

    def noted(steps: DeviceSteps, given: StepInput) -> QueuedStep:
        may_grow.append(bool(given.live[second.row]))
        return launch(steps, given)

    monkeypatch.setattr(DeviceSteps, "launch", noted)
    shape = shape_of(4, 8)
    scheduler = scheduler_with(shape, 512)
    first, second = (session_of(number, text_of(289, 1), Sampling(seed=1)) for number in range(2))
    for each in (first, second):
        scheduler.open(each)
    for _ in range(12):
        scheduler.grow()
        arrive([first, second])
    assert may_grow == sorted(may_grow), "it could grow, and then it could not"
    assert may_grow[-1]
