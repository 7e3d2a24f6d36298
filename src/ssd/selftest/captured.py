"""Compares captured steps with uncaptured ones and with the eager runner.

Captured steps are CUDA graphs on a GPU and recordings elsewhere.
"""

from collections.abc import Iterator

import torch

from ssd.attention.choice import captured_backend
from ssd.attention.inputs import PlainInput
from ssd.runtime.buckets import Buckets
from ssd.runtime.capture import Capture, CudaGraphs
from ssd.runtime.captured import CapturedRunner
from ssd.runtime.eager import EagerRunner
from ssd.runtime.gpu_device import CudaDevice
from ssd.runtime.loading import LoadedModel
from ssd.runtime.runner import forward
from ssd.selftest.made_up import BLOCK, TINY, loaded_model
from ssd.selftest.recording import Recording, RunAgain
from ssd.selftest.results import CheckResult

_PART = "captured steps"
_SIZES = (1, 2, 4, 8, 16)
_TABLE = 4
_CONTEXT = 30
_ROUNDING = 1e-3


def capture_results(device: torch.device) -> Iterator[CheckResult]:
    loaded = loaded_model(TINY, device, torch.float32)
    for tensor in (loaded.pool.keys, loaded.pool.values):
        tensor.normal_()
    capture: Capture = CudaGraphs(CudaDevice(device)) if device.type == "cuda" else Recording()
    name = "graphs" if device.type == "cuda" else "recorded and replayed"
    again, captured = (_captured(loaded, each) for each in (RunAgain(), capture))
    num_equal, worst = 0, 0.0
    for size in _SIZES:
        for rows in _rows(size):
            mine, same = forward(captured, rows), forward(again, rows)
            num_equal += torch.equal(mine, same)
            worst = max(worst, float((mine - forward(loaded.runner, rows)).abs().max()))
    count = 2 * len(_SIZES)
    found = f"{num_equal} of {count} steps bit for bit as not captured"
    yield CheckResult(
        _PART,
        name,
        found,
        "ok" if num_equal == count and not captured.num_eager else "failed",
        f"sizes {_SIZES}",
    )
    verdict = CheckResult(
        _PART, "beside eager", f"logits differ by {worst:.1e} at most, {_ROUNDING:.0e} is rounding"
    )
    yield verdict if worst <= _ROUNDING else CheckResult(_PART, verdict.what, verdict.found, "failed")


def _captured(loaded: LoadedModel, capture: Capture) -> CapturedRunner:
    assert isinstance(loaded.runner, EagerRunner)
    attention = captured_backend(loaded.pool, loaded.runner.model.config.num_heads)
    if attention is None:
        raise ValueError("no kernel of ours for attention runs here: see the results for kernels")
    return CapturedRunner(loaded.runner, attention, loaded.pool, Buckets(_TABLE, _SIZES), capture)


def _rows(size: int) -> Iterator[list[PlainInput]]:
    """A step with one verification of `size` rows, and one with `size` decoding sequences."""
    yield [PlainInput(list(range(2, 2 + size)), _CONTEXT, list(range(_TABLE)), size, generated=True)]
    assert _CONTEXT < 2 * BLOCK
    blocks = [[2 * index, 2 * index + 1] for index in range(size)]
    yield [PlainInput([7 + index], _CONTEXT, each, 1, generated=True) for index, each in enumerate(blocks)]
