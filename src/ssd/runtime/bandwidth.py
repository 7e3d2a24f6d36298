"""Measures a device: its memory bandwidth. Does not know models."""

import time
from collections.abc import Callable

import torch

_SIDE = 8192


def reading_rate(device: torch.device) -> float:
    """Bytes per second that a matrix-vector product reads.

    Decoding is bound by this: the rate divided by a model's size is about the most tokens per second.
    """
    matrix, vector = torch.ones(_SIDE, _SIDE, device=device), torch.ones(_SIDE, device=device)
    return matrix.nbytes / _best_seconds(lambda: matrix @ vector, device, within=1.0)


def _best_seconds(work: Callable[[], object], device: torch.device, *, within: float) -> float:
    """The shortest of the runs that fit into `within` seconds: other load only makes runs longer."""
    best, ends = float("inf"), time.perf_counter() + within
    while time.perf_counter() < ends:
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best
