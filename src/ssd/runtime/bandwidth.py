"""How fast a device reads its memory, and how long it takes to be told to do something. Knows no models."""

import time
from collections.abc import Callable

import torch

_SIDE = 8192
_LAUNCHES = 1000


def reading_rate(device: torch.device) -> float:
    """Bytes a second at which a product of matrix and vector reads its matrix.

    Decoding does little else, so this over a model's size is about the most tokens a second.
    """
    matrix, vector = torch.ones(_SIDE, _SIDE, device=device), torch.ones(_SIDE, device=device)
    return matrix.nbytes / best_seconds(lambda: matrix @ vector, device, within=1.0)


def launch_seconds(device: torch.device) -> float:
    """Of one small operation among many: what torch and a driver take, on a CPU torch alone."""
    place = torch.zeros(1, device=device)

    def launch() -> None:
        for _ in range(_LAUNCHES):
            place.add_(1.0)

    return best_seconds(launch, device, within=0.3) / _LAUNCHES


def best_seconds(work: Callable[[], object], device: torch.device, *, within: float) -> float:
    """Of several runs, until the time is over: others on the machine only ever make it longer."""
    best, ends = float("inf"), time.perf_counter() + within
    while time.perf_counter() < ends:
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best
