"""One bare forward, timed where the engine would compute it: a draft's on the draft's device and cores.

Knows loaded models and cores; not who needs the times. A draft that works ahead has a process of its own with
cores of its own: timed on the target's it would look as fast, or as slow, as these make it.
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
    """Of whom, of how many rows, and on which cores; no cores: as at the start."""

    loaded: LoadedModel
    rows: int
    cores: tuple[int, ...]


def load_bare_draft(config: EngineConfig) -> LoadedModel:
    """A copy of the draft that only computes forwards, one at a time; loading it moves nobody."""
    return load_model(replace(config.draft_runner, cores=(), max_num_seqs=1))


def median_seconds(forwards: Sequence[BareForward], *, turns: int, home: tuple[int, ...]) -> list[float]:
    """Of each, over turns that all of them take. The process is on the cores of `home`, and is again."""
    times: list[list[float]] = [[] for _ in forwards]
    cores = home
    try:
        for _ in range(turns):
            for forward, found in zip(forwards, times, strict=True):
                if forward.cores != cores:
                    move_to_cores(forward.cores)
                    cores = forward.cores
                    # The first one on other cores starts threads there.
                    bare_forward(forward.loaded, forward.rows)
                found.append(bare_forward(forward.loaded, forward.rows))
    finally:
        if cores != home:
            move_to_cores(home)
    return [statistics.median(found) for found in times]


def bare_forward(loaded: LoadedModel, rows: int) -> float:
    """Seconds of a forward of so many rows after a context, whose content does not matter here."""
    context = max(1, min(_CONTEXT, loaded.max_model_len - rows))
    blocks = list(range(-(-(context + rows) // loaded.pool.shape.block_size)))
    started = time.perf_counter()
    # Reading the answer waits for a device that computes by itself.
    forward(loaded.runner, [PlainInput([1] * rows, context, blocks, rows, generated=True)])[0, 0].item()
    return time.perf_counter() - started
