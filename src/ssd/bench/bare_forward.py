"""Times one bare forward on the device and cores that the engine would use.

A draft that works ahead has its own process with its own cores, so its forward is timed on these. Knows
loaded models and cores. Does not know the use of the times.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ssd.attention.inputs import PlainInput
from ssd.config import EngineConfig
from ssd.runtime.cores import move_to_cores
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward

_CONTEXT = 256


@dataclass(frozen=True, slots=True, eq=False)
class BareForward:
    """A forward of a model with a number of rows on some cores; no cores: those at the start."""

    loaded: LoadedModel
    rows: int
    cores: tuple[int, ...]


def load_bare_draft(config: EngineConfig) -> LoadedModel:
    """A copy of the draft that only computes forwards, one at a time. Loading it does not change cores."""
    return load_model(replace(config.draft_runner, cores=(), max_num_seqs=1))


def median_seconds(forwards: Sequence[BareForward], *, turns: int, home: tuple[int, ...]) -> list[float]:
    """Median seconds of each forward; they take turns. `home`: the process's cores before and after."""
    times: list[list[float]] = [[] for _ in forwards]
    cores = home
    try:
        for _ in range(turns):
            for forward, seconds in zip(forwards, times, strict=True):
                if forward.cores != cores:
                    move_to_cores(forward.cores)
                    cores = forward.cores
                    # The first forward on other cores starts threads there.
                    bare_forward(forward.loaded, forward.rows)
                seconds.append(bare_forward(forward.loaded, forward.rows))
    finally:
        if cores != home:
            move_to_cores(home)
    return [statistics.median(seconds) for seconds in times]


def bare_forward(loaded: LoadedModel, rows: int) -> float:
    """Seconds of a forward of this many rows after a context with arbitrary content."""
    context = max(1, min(_CONTEXT, loaded.max_model_len - rows))
    blocks = list(range(-(-(context + rows) // loaded.pool.shape.block_size)))
    started = time.perf_counter()
    # Reading a value waits for an asynchronous device.
    forward(loaded.runner, [PlainInput([1] * rows, context, blocks, rows, generated=True)])[0, 0].item()
    return time.perf_counter() - started
