"""Prices of calls by hand, and beside steps that others have measured."""

from dataclasses import replace

import pytest

from ssd.planning.hardware import Device, DriverCosts, built_in, find_device
from ssd.planning.models import find_model
from ssd.planning.step_price import DeviceCall, KernelWork, price

DRIVER = DriverCosts(launch=1, replay=2, node=10, copy=3, wait=5, pcie=100, share=0.5)
DEVICE = Device(name="box", bandwidth=20, flops=1000, memory=1, link=0, reduce=0, driver=DRIVER)
KERNEL = KernelWork("kernel", 100)
"""Ten seconds of its bytes, and as many of its own."""
PRODUCT = KernelWork("product", 100, 40_000)


def of(*calls: DeviceCall, host: float = 0.0) -> tuple[float, float]:
    found = price(calls, DEVICE, host)
    return found.seconds, found.busy


def test_a_graph_is_one_call_and_all_of_its_kernels() -> None:
    # The host is ahead: what the device computes is all that counts.
    assert of(DeviceCall("replay", "graph", (KERNEL, KERNEL))) == (40, 40)
    assert of(DeviceCall("launch", "a", (KERNEL,)), DeviceCall("launch", "b", (PRODUCT,))) == (20 + 50, 70)


def test_a_read_waits_for_all_before_it() -> None:
    read = DeviceCall("read", "to", num_bytes=200, waits=True)
    # Replay, kernel, copy, wait; the copy is submitted while the kernel runs.
    assert of(DeviceCall("replay", "graph", (KERNEL,)), read) == (2 + 20 + 2 + 5, 22)
    assert of(DeviceCall("replay", "graph", (KERNEL,)), replace(read, waits=False)) == (22, 22)


def test_host_and_device_work_side_by_side() -> None:
    graph = DeviceCall("replay", "graph", (KERNEL,), host=1.0)
    assert of(graph, host=5.0)[0] == 20
    assert of(graph, host=50.0)[0] == 52
    assert of(graph, replace(graph, waits=True, host=3.0), host=8.0)[0] == 2 + 2 + 20 + 20 + 5


def test_a_cpu_has_no_price() -> None:
    with pytest.raises(ValueError, match="add them to its row"):
        price([], find_device("grace"), 0.0)


@pytest.mark.parametrize("name", ["h100", "a100", "rtx4090", "mi300x"])
def test_a_gpu_has_sane_costs(name: str) -> None:
    driver = built_in()[name].driver
    assert driver is not None
    assert 0.2e-6 < driver.node < 10e-6
    assert 1e-6 < driver.launch <= driver.replay < 30e-6
    assert 10e9 < driver.pcie < 64e9
    assert 0.5 < driver.share < 1


@pytest.mark.parametrize(
    ("model", "num_kernels", "measured"),
    [
        # github.com/Weili-0234/ssd-wl, REPRODUCE.md.
        ("qwen3-0.6b", 28 * 20, 2.54e-3),
        # hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles: vLLM, "around a hundred" kernels, at most half
        # of an H100's bandwidth.
        ("llama-3.2-1b", 100, 2 * 2.47e9 / 3.35e12),
    ],
)
def test_steps_of_others_take_up_to_twice_their_price(model: str, num_kernels: int, measured: float) -> None:
    """So does docs/gpu-kernels.md say how wrong a price may be. Their hosts are in what was measured."""
    kernel = KernelWork("any", find_model(model).bytes_read / num_kernels)
    found = price([DeviceCall("replay", "graph", (kernel,) * num_kernels)], find_device("h100"), 0.0)
    assert 0.5 < found.seconds / measured < 0.8
