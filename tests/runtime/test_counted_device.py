"""The stand-in tells uploads, downloads, reads and launches apart."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.runtime.capture import CudaGraphs
from tests.runtime.counted_device import DEVICE, CountedDevice, DeviceTensor, host_form
from tests.runtime.stand_in import StandInDevice


def made() -> Tensor:
    return torch.full((4,), 3, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize(
    "read",
    [
        lambda each: each[0].item(),
        lambda each: each.tolist(),
        lambda each: bool(each[0]),
        lambda each: each.nonzero(),
        lambda each: each[each > 0],
        lambda each: each.cpu(),
        lambda each: torch.zeros(4, dtype=torch.int32).copy_(each),
        lambda each: each[torch.tensor([1, 2])],
        lambda each: each + torch.tensor([1, 2, 3, 4], device=DEVICE),
    ],
)
@pytest.mark.parametrize("in_inference_mode", [False, True])
def test_what_waits_is_noticed(read: Callable[[Tensor], object], in_inference_mode: bool) -> None:
    """In inference mode torch dispatches `item` and `to` themselves."""
    with torch.inference_mode(in_inference_mode), CountedDevice() as device:
        given = made()
        device.forget()
        read(given)
    assert device.waits


def test_what_does_not_wait_is_counted() -> None:
    with CountedDevice() as device:
        given = made()
        assert device.launches == ["full"]
        device.forget()
        uploaded = torch.arange(4, dtype=torch.int32).to(DEVICE, non_blocking=True)
        given[uploaded[1:3].long()] = uploaded[:2]
        back = given.to("cpu", non_blocking=True)
    assert (device.uploads, device.downloads, device.waits) == (["_to_copy"], ["_to_copy"], [])
    assert device.launches == ["_to_copy", "index_put_"]
    assert isinstance(given, DeviceTensor)
    assert not isinstance(back, DeviceTensor)
    assert host_form(given).tolist() == back.tolist() == [3, 0, 1, 3]


def test_a_replayed_graph_is_one_call_of_all_its_kernels() -> None:
    device = CountedDevice()
    with device, torch.inference_mode():
        table = torch.zeros(4, device=DEVICE)
        replay = CudaGraphs(StandInDevice(counts=device))(lambda: table.add_(1.0).mul_(2.0))
        before = table.tolist()
        device.forget()
        replay()
        table.add_(0.5)
        calls, after = list(device.calls), table.tolist()
    assert [(each.kind, [kernel.name for kernel in each.kernels]) for each in calls] == [
        ("replay", ["add_", "mul_"]),
        ("launch", ["add_"]),
    ]
    assert after == [2 * (each + 1) + 0.5 for each in before]


def test_bytes_and_operations_of_a_kernel() -> None:
    device = CountedDevice(keeps_values=False)
    with device, torch.inference_mode():
        rows = torch.zeros(3, 8, dtype=torch.bfloat16, device=DEVICE)
        weight = torch.zeros(5, 8, dtype=torch.bfloat16, device=DEVICE)
        device.forget()
        product = F.linear(rows, weight)
        product.view(-1)[2:4].float()
        weight[torch.zeros(2, dtype=torch.int64, device=DEVICE)]
    works = [kernel for each in device.calls for kernel in each.kernels]
    found = [(each.name, each.num_bytes, each.operations) for each in works]
    assert found == [
        ("linear", 2 * (24 + 40 + 15), 2 * 3 * 5 * 8),
        ("to", 2 * 2 + 2 * 4, 0),
        ("zeros", 2 * 8, 0),
        # Two rows of the table are read and written, and their indices read.
        ("index", 2 * 2 * 16 + 2 * 8, 0),
    ]


def test_pinned_memory_is_known() -> None:
    with CountedDevice() as device:
        pinned = torch.empty(4, dtype=torch.int32, pin_memory=True)
        given = made()
        device.forget()
        given.copy_(pinned, non_blocking=True)
        pinned.copy_(given, non_blocking=True)
        given.copy_(torch.zeros(4, dtype=torch.int32), non_blocking=True)
        torch.zeros(4, dtype=torch.int32).copy_(given, non_blocking=True)
    assert [(each.kind, each.is_pinned, each.waits) for each in device.calls] == [
        ("upload", True, False),
        ("read", True, False),
        ("upload", False, False),
        ("read", False, True),
    ]
