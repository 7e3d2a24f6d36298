"""A draft whose kernels are refused, one after the other, starts, grows the same trees, and fits into memory.

Trees: of a tiny model, on a stand-in device, kernels in the interpreter. Memory: of Llama-3.2-1B in bfloat16
with 64 trees and texts of up to 131,072 tokens, on tensors without values.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, get_args
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction

from benchmarks import counted_step
from benchmarks.counted_step import LLAMA_1B, LONGEST
from benchmarks.draft_step_cost import CONFIG
from ssd.attention.inputs import PlainInput
from ssd.config import DraftConfig
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.main import build_scheduler, shape_for
from ssd.draft.server.session import DraftSession
from ssd.kernels import trust
from ssd.runtime.capture import CudaGraphs
from ssd.selftest.made_up import MadeUpShape, loaded_model
from ssd.selftest.recording import RunAgain
from tests.runtime.counted_device import DEVICE, CountedDevice, host_form
from tests.runtime.stand_in import StandInDevice
from tests.still_clock import still

MEMORY = 24e9
"""Of the smallest GPU in docs/gpu.md."""
CAPTURED = [each for each in get_args(trust.Kernel) if each not in ("attention", "decide")]
"""Without our attention, steps run eagerly. `decide` is the target's."""


@pytest.mark.parametrize("refused", CAPTURED)
def test_captured_steps_without_a_kernel_fit(refused: trust.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_failed", {(DEVICE.type, refused)})
    assert counted_step.peak_bytes(LLAMA_1B, CONFIG) < MEMORY


def test_an_eager_step_without_our_attention_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sequences of the greatest length, 72 rows each."""
    monkeypatch.setattr(trust, "_failed", {(DEVICE.type, "attention")})
    device = CountedDevice(keeps_values=False)
    with torch.inference_mode(), device:
        loaded = counted_step._loaded(LLAMA_1B, CONFIG, CudaGraphs(StandInDevice(counts=device)))
        blocks = range(-(-LONGEST // loaded.pool.shape.block_size))
        rows = [PlainInput([0] * 72, LONGEST - 72, blocks, 72, generated=False) for _ in range(2)]
        loaded.runner.launch(loaded.runner.batch(rows), lambda logits: logits)
    assert 0 < device.peak_bytes < MEMORY


TINY = MadeUpShape(1, 64, 128, 4, 2, 300, 32)
# Above 0 the torch form of `children` adds noise to fewer candidates (draft/tree/gpu.py).
SAMPLINGS = (Sampling(seed=1), Sampling(seed=5, repetition_penalty=1.2))


@contextmanager
def interpreted(device: CountedDevice) -> Iterator[None]:
    """Kernels that are launched on `device` run in the interpreter, on the values that it holds."""
    kind = InterpretedFunction
    original = kind.run

    def run(kernel: Any, *args: Any, **options: Any) -> None:
        with device.unseen(), _disable_current_modes():
            original(kernel, *tree_map(host_form, args), **options)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(kind, "run", run))
        for name, answer in counted_step.ANSWERS.items():
            patches.enter_context(mock.patch(name, return_value=answer))
        yield


def grown(refused: frozenset[str]) -> list[Any]:
    """What a draft says of two texts without these kernels."""
    torch.manual_seed(3)
    device = CountedDevice()
    config = DraftConfig(model="tiny", max_num_seqs=2, width=4, lookup=2)
    with (
        mock.patch.object(trust, "_failed", {(DEVICE.type, each) for each in refused}),
        torch.inference_mode(),
        device,
        interpreted(device),
    ):
        loaded = loaded_model(TINY, DEVICE, torch.float32, num_trees=2, capture=RunAgain())
        loaded = replace(loaded, max_model_len=200)
        shape = replace(shape_for(loaded, config), rows=8, ring=8, outcome=4)
        scheduler = build_scheduler(loaded, shape, config, still)
        sessions = [
            DraftSession(Open(number, 1, pack_ints(text), len(text), 200, 3, sampling), max_len=200)
            for number, (text, sampling) in enumerate(
                zip(([5, 6, 7, 5, 6], [9] * 12), SAMPLINGS, strict=True)
            )
        ]
        for each in sessions:
            scheduler.open(each)
        said = list[Any]()
        for number in range(5):
            frames, _num_rows = scheduler.grow()
            if frames is not None:
                said.append((frames.new.rows.tolist(), frames.new.nodes.tolist()))
            if number == 2:
                for each in sessions:
                    scheduler.advance(each, 1, [7, 8])
    return said


@pytest.fixture(scope="module")
def by_all_kernels() -> list[Any]:
    return grown(frozenset())


IN_CI = ("attention", "apply", "children", "norm")
"""A kernel of the model, of the trees, of the choice of children, and one of many small ones."""
EACH = [
    pytest.param(each, marks=[] if each in IN_CI else pytest.mark.slow) for each in get_args(trust.Kernel)
]


@pytest.mark.parametrize("refused", EACH)
def test_without_a_kernel_a_draft_starts_and_grows_the_same_trees(
    refused: trust.Kernel, by_all_kernels: list[Any]
) -> None:
    assert len(by_all_kernels) >= 3
    assert grown(frozenset({refused}))[: len(by_all_kernels)] == by_all_kernels
