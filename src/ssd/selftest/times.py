"""Measures memory bandwidth, launches and forwards by rows, and compares them with expectations.

A forward reads its weights once and launches its operations: it should not take much longer than the measured
bandwidth and launch time imply. Bandwidth is compared with the data sheet if the device is known. Weights are
random, of usual shapes: on a GPU some layers of an 8B model and all of a 0.6B model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ssd.attention.rotation import Rotation
from ssd.bench.bare_forward import bare_forward
from ssd.kernels.tiles import AttentionShape, attention_tiles
from ssd.models.decoder import DecoderInput, DenseDecoder
from ssd.models.row_math import RowMath
from ssd.planning.hardware import Device, called_like
from ssd.runtime.bandwidth import best_seconds
from ssd.runtime.capture import CudaGraphs
from ssd.runtime.gpu_device import CudaDevice
from ssd.runtime.loading import LoadedModel
from ssd.sampling import Draws, SamplingParams, Truncation
from ssd.sampling.coupled import decide_tokens
from ssd.selftest.made_up import TINY, MadeUpShape, RandomWeights, loaded_model
from ssd.selftest.recording import Recording
from ssd.selftest.results import CheckResult, at_most, in_words

ROWS = (1, 2, 4, 8, 16)
_SAMPLER_ROWS = {"cuda": (1, 5, 40, 160), "cpu": (1, 5)}
"""Of one plain text, and of batches of 1, 8 and 32 that verify 4 drafted tokens."""
_ON_CPU = (MadeUpShape(4, 1024, 2816, 16, 4, 8192, 64), MadeUpShape(2, 512, 1408, 8, 2, 8192, 64))
_ON_GPU = (MadeUpShape(8, 4096, 14336, 32, 8, 128_256, 128), MadeUpShape(28, 1024, 3072, 16, 8, 151_936, 128))
_ROOM = 10 << 30
"""Free bytes that a GPU needs for the larger pair."""
_DATA_SHEET = 0.6
"""Share of the data sheet's bandwidth that a matrix-vector product should reach."""
_LAUNCH, _CAPTURED_LAUNCH = 10e-6, 3e-6
"""Expected seconds of a launch, alone and within a graph, with recent drivers."""
_TURNS = 8
"""The first turn also warms up."""


def memory_result(device: torch.device, rate: float) -> CheckResult:
    measured, sheet = f"{rate / 1e9:.1f} GB/s read", data_sheet(device)
    if sheet is None:
        return CheckResult("memory", "bandwidth", measured, why="no data sheet to compare with")
    share = rate / sheet.bandwidth
    why = f"{share:.2f} of the {sheet.bandwidth / 1e9:.0f} GB/s of {sheet.name}"
    return CheckResult(
        "memory", "bandwidth", measured, "ok" if share >= _DATA_SHEET else "slower than expected", why
    )


def data_sheet(device: torch.device) -> Device | None:
    return called_like(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def launch_results(launch: float, captured: float | None) -> Iterator[CheckResult]:
    yield at_most("launches", "one by one", launch, _LAUNCH, "of a small operation among many")
    if captured is None:
        yield CheckResult("launches", "within a graph", "there are none on a CPU", "not run")
    else:
        yield at_most("launches", "within a graph", captured, _CAPTURED_LAUNCH, "of the same operation")


def captured_launch_seconds(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    number, count = torch.zeros(1, device=device), 1000

    def work() -> None:
        for _ in range(count):
            number.add_(1.0)

    replay = CudaGraphs(CudaDevice(device))(work)
    return best_seconds(replay, device, within=0.3) / count


def made_up_pair(device: torch.device, dtype: torch.dtype) -> tuple[LoadedModel, LoadedModel]:
    target, draft = (loaded_model(shape, device, dtype) for shape in _shapes(device))
    return target, draft


def draft_shape(device: torch.device) -> MadeUpShape:
    """On a CPU a tiny one, to try the step: its time there says nothing."""
    return TINY if device.type == "cpu" else _shapes(device)[1]


def _shapes(device: torch.device) -> tuple[MadeUpShape, MadeUpShape]:
    has_room = device.type == "cuda" and torch.cuda.mem_get_info(device)[0] > _ROOM
    return _ON_GPU if has_room else _ON_CPU


def sampler_result(device: torch.device) -> CheckResult:
    """Our sampler inside vLLM's V1 runner, by rows. On the V2 runner vLLM samples by itself."""
    found = [f"{rows}: {in_words(_sampler_seconds(device, rows))}" for rows in _SAMPLER_ROWS[device.type]]
    return CheckResult("sampler", "T = 0.7, top_p = 0.9", f"by rows, {', '.join(found)}")


@torch.inference_mode()
def _sampler_seconds(device: torch.device, rows: int) -> float:
    logits = 2.5 * torch.randn(rows, _ON_GPU[1].vocab, device=device)
    params = [SamplingParams(temperature=0.7, top_p=0.9)] * rows
    numbers = torch.arange(rows, device=device)
    temperatures = torch.full((rows,), 0.7, device=device)
    draws = Draws(numbers, numbers, temperatures, Truncation.of(params, device))
    return best_seconds(lambda: decide_tokens(logits, draws), device, within=0.2)


def forward_seconds(models: Sequence[LoadedModel]) -> list[dict[int, float]]:
    """The shortest times of each model by rows, over a few turns: other load only makes forwards longer."""
    shortest = [dict.fromkeys(ROWS, float("inf")) for _ in models]
    for _ in range(_TURNS):
        for model, best in zip(models, shortest, strict=True):
            best.update({rows: min(best[rows], bare_forward(model, rows)) for rows in ROWS})
    return shortest


def forward_result(
    name: str, model: LoadedModel, seconds: Mapping[int, float], rate: float, overhead: float
) -> CheckResult:
    """`overhead`: seconds of its launches."""
    config, width = model.checkpoint.config, model.pool.shape.dtype.itemsize
    expected = config.num_parameters * width / rate + overhead
    shown = ", ".join(f"{rows}: {in_words(each)}" for rows, each in seconds.items())
    measured = f"by rows, {shown}; 1 expected about {in_words(expected)}"
    title = f"{name}, {config.num_parameters / 1e6:.0f} M weights"
    verdict = at_most("forwards", title, seconds[ROWS[0]], expected, "").verdict
    if verdict != "ok":
        return CheckResult("forwards", title, measured, verdict, "weights at the measured rate, and launches")
    # Rows share the weights, so they should take at most half as long as one after another.
    if seconds[ROWS[-1]] > ROWS[-1] / 2 * seconds[ROWS[0]]:
        return CheckResult(
            "forwards", title, measured, "slower than expected", "rows together should share the weights"
        )
    return CheckResult("forwards", title, measured)


_ONE_OPERATION_EACH = RowMath(
    add_norm=lambda hidden, delta, weight, eps: (hidden, hidden + delta),
    silu_mul=lambda gate_up: gate_up.chunk(2, dim=-1)[0].neg(),
)
"""As our kernels: one launch each."""


class _NoAttention:
    """An attention plan that returns the queries: the kernels of attention are counted separately."""

    def attend(self, layer: int, heads: Tensor, values: Tensor, rotation: Rotation) -> Tensor:
        return heads[:, : -values.shape[1]].flatten(1)


def count_launches() -> tuple[int, int]:
    """The number of launches of a forward with our kernels: per layer, and outside the layers."""
    one_layer, two_layers = (_operations(layers) for layers in (1, 2))
    shape = AttentionShape(1, 2, 4096, TINY.heads, TINY.kv_heads, TINY.head_dim, 2)
    tiles = attention_tiles(shape, num_processors=132, is_hip=False, deterministic=False)
    # One kernel rotates and writes, one attends, and one merges splits if there are several.
    attention = 3 if tiles.num_splits > 1 else 2
    return two_layers - one_layer + attention, 2 * one_layer - two_layers


@torch.inference_mode()
def _operations(layers: int) -> int:
    config, cpu = replace(TINY, layers=layers).config, torch.device("cpu")
    model = DenseDecoder(
        *(config, RandomWeights(config, cpu, torch.float32)),
        num_positions=64,
        dtype=torch.float32,
        device=cpu,
        row_math=_ONE_OPERATION_EACH,
    )
    numbers = torch.arange(4)
    tape = Recording()(lambda: model.logits(model.hidden(DecoderInput(numbers, numbers, _NoAttention()))))
    return len(tape.operations)
