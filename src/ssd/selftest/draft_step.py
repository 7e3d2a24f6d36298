"""Times a step of a draft that grows one tree, as `ssd draft` runs it: captured on a GPU, else on arrays.

This time decides whether SSD pays: the draft has to take several steps while the target verifies. Weights are
random, so the tree is not a real one, but a step computes as many rows.
"""

import statistics
import time
from collections.abc import Iterator

import torch

from ssd.config import DraftConfig
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.main import build_scheduler, shape_for
from ssd.draft.server.scheduler import DraftScheduler
from ssd.draft.server.session import DraftSession
from ssd.runtime.capture import CudaGraphs
from ssd.runtime.gpu_device import gpu_device_of
from ssd.selftest.made_up import MadeUpShape, loaded_model

CONTEXT = 768
"""Tokens of the text that the tree continues."""
_TEXTS = 2
_LOOKAHEAD = 4


def draft_step_seconds(shape: MadeUpShape, device: torch.device, dtype: torch.dtype) -> float:
    """Median seconds of a step, after the prompt was read, over a few texts."""
    gpu = gpu_device_of(device)
    capture = None if gpu is None else CudaGraphs(gpu)
    loaded = loaded_model(shape, device, dtype, num_trees=1, capture=capture)
    config = DraftConfig(model="made up")
    with torch.inference_mode():
        scheduler = build_scheduler(loaded, shape_for(loaded, config), config)
        most_rows = config.width + config.lookup
        steps = [list(_steps(scheduler, number, shape.vocab, most_rows)) for number in range(_TEXTS)]
    # The first text also warms up.
    return statistics.median(seconds for each in steps[1:] for seconds in each)


def _steps(scheduler: DraftScheduler, number: int, vocab: int, most_rows: int) -> Iterator[float]:
    """Seconds of each step of one text's tree, from its root until it is full; prompt steps are not timed."""
    session = DraftSession(_opening(number, vocab), scheduler.max_model_len, vocab)
    scheduler.open(session)
    num_rows = 1
    while num_rows:
        started = time.perf_counter()
        _, num_rows = scheduler.grow()
        if 0 < num_rows <= most_rows:
            yield time.perf_counter() - started
    scheduler.close(session)


def _opening(number: int, vocab: int) -> Open:
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(vocab, (CONTEXT,), generator=generator).tolist()
    return Open(number, 0, pack_ints(tokens), CONTEXT, 1 << 20, _LOOKAHEAD, Sampling(seed=number))
