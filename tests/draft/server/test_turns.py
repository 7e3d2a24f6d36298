"""How the rows of one step fall to tenants of unequal weight."""

import numpy as np
import pytest
import torch

from benchmarks.ruled import BLOCK, CONTEXT, NUM_BLOCKS, RuledModel, device_steps, host_steps, shape_of
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.kvcache.block_manager import BlockManager
from tests.runtime.recording import RunAgain
from tests.still_clock import still


@pytest.mark.parametrize("on_device", [False, True], ids=["arrays", "tensors"])
def test_within_a_step_rows_go_to_who_has_had_least_with_them(on_device: bool) -> None:
    """Of six rows at weights 1 and 3, from equal accounts, five go to the heavier tenant."""
    shape, limits = shape_of(2, 8, width=6, slots=32), HostLimits(16, CONTEXT, {"b": 3.0})
    steps = device_steps(RuledModel(), shape, RunAgain()) if on_device else host_steps(RuledModel(), shape)
    forest = steps.forest
    scheduler = DraftScheduler(steps, BlockManager(NUM_BLOCKS, BLOCK), limits, clock=still)
    for number, tenant in enumerate("ab"):
        opening = Open(number, 1, pack_ints([number + 5, 9, 30]), 3, 500, 4, Sampling(seed=1))
        scheduler.open(DraftSession(opening, CONTEXT, tenant=tenant))
    for _ in range(4):
        scheduler.grow()
    forest.usage.used[:] = 0.0
    with torch.inference_mode():
        forest.select()
    sequence = forest.xp.to_host(forest.rows.sequence)[: forest.shape.num_rows]
    assert np.bincount(sequence, minlength=3)[1:].tolist() == [1, 5]
