"""What a draft step asks of a GPU is counted whole: launches, bytes, reads, uploads and waits."""

import pytest
import torch

pytest.importorskip("triton")

from benchmarks import counted_step
from benchmarks.counted_step import LLAMA_1B, CountedStep, Kernels, Scene
from benchmarks.draft_step_cost import CONFIG, SAMPLINGS
from ssd.draft.server.device_steps import DeviceSteps, QueuedStep
from ssd.draft.server.steps import StepInput
from ssd.draft.tree.tables import Shape
from ssd.planning.hardware import find_device
from ssd.planning.step_price import price
from tests.runtime.counted_device import DEVICE, CountedDevice
from tests.runtime.launches import count_launches
from tests.runtime.recording import RunAgain

Counted = tuple[Shape, list[Kernels]]


@pytest.fixture(scope="module")
def counted() -> Counted:
    return counted_step.graphs_of(LLAMA_1B, CONFIG)


def forward_of(graphs: list[Kernels]) -> Kernels:
    return max(graphs, key=len)


def test_a_forward_has_the_launches_that_a_plan_counts(counted: Counted) -> None:
    """From the embedding, cosines and sines, which are before the first norm, to the head."""
    per_layer, beside = count_launches()
    names = [each.name for each in forward_of(counted[1])]
    first, last = names.index("rms_norm") - 3, len(names) - names[::-1].index("linear")
    assert last - first == LLAMA_1B.layers * per_layer + beside


def test_weights_are_read_once(counted: Counted) -> None:
    products = [each for each in forward_of(counted[1]) if each.operations]
    weights, rows = LLAMA_1B.config.num_parameters, 144
    assert len(products) == 4 * LLAMA_1B.layers + 1
    assert sum(each.operations for each in products) == 2.0 * rows * weights
    assert 2 * weights < sum(each.num_bytes for each in products) < 2.2 * weights


def test_rows_on_the_device_are_those_on_the_cpu(counted: Counted) -> None:
    shape, _graphs = counted
    scene, device = Scene(2, 64, SAMPLINGS["greedy"]), CountedDevice()
    here = counted_step.RuledDraft(shape, scene, torch.device("cpu"), RunAgain())
    with torch.inference_mode(), device:
        there = counted_step.RuledDraft(shape, scene, DEVICE, RunAgain())
    for _ in range(3):
        here.decide()
        found = here.step()
        with torch.inference_mode(), device:
            there.decide()
            assert there.step() == found
            tokens = there.steps.latest.forest.rows.token.tolist()
        assert tokens == here.steps.latest.forest.rows.token.tolist()


def test_one_more_read_is_seen_and_costs(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, graphs = counted
    scene = Scene(1, 64, SAMPLINGS["greedy"])

    def step() -> CountedStep:
        return counted_step.with_graphs(counted_step.counted_steps(shape, scene)[1], graphs, LLAMA_1B)

    before = step()
    launch = DeviceSteps.launch

    def reading(steps: DeviceSteps, given: StepInput) -> QueuedStep:
        launched = launch(steps, given)
        steps.forest.tables.length[1].item()
        return launched

    monkeypatch.setattr(DeviceSteps, "launch", reading)
    after = step()
    assert len(after.of("read")) == len(before.of("read")) + 1
    h100 = find_device("h100")
    assert price(after.calls, h100, 0.0).seconds > price(before.calls, h100, 0.0).seconds + 5e-6


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("batch", [1, 16])
def test_a_step_uploads_once_and_waits_only_for_the_one_before(
    counted: Counted, sampling: str, batch: int
) -> None:
    shape, _graphs = counted
    for step in counted_step.counted_steps(shape, Scene(batch, 64, SAMPLINGS[sampling])):
        [upload], [read], [wait] = step.of("upload"), step.of("read"), step.of("wait")
        assert not upload.waits
        assert not read.waits
        assert wait.behind == 1
        assert not step.of("launch")
