"""The stand-in tells uploads, downloads, reads and launches apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.runtime.counted_device import DEVICE, CountedDevice, DeviceTensor, host_form


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
def test_what_waits_is_noticed(read: Callable[[Tensor], object]) -> None:
    with CountedDevice() as device:
        given = made()
        device.forget()
        read(given)
    assert device.waits


def test_what_does_not_wait_is_counted() -> None:
    with CountedDevice() as device:
        given = made()
        assert device.launches == ["full"]
        uploaded = torch.arange(4, dtype=torch.int32).to(DEVICE, non_blocking=True)
        given[uploaded[1:3].long()] = uploaded[:2]
        back = given.to("cpu", non_blocking=True)
        device.launches.remove("full")
    assert (device.uploads, device.downloads, device.waits) == (["_to_copy"], ["_to_copy"], [])
    assert device.launches == ["_to_copy", "index_put_"]
    assert isinstance(given, DeviceTensor)
    assert not isinstance(back, DeviceTensor)
    assert host_form(given).tolist() == back.tolist() == [3, 0, 1, 3]


def test_work_on_the_host_is_not_counted() -> None:
    with CountedDevice() as device:
        assert torch.arange(4)[torch.tensor([True, False, True, False])].tolist() == [0, 2]
    assert not [*device.uploads, *device.downloads, *device.waits, *device.launches]
