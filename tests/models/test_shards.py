"""Linears in shards: right, and with the same bits for any number of threads."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.models.linear import MakeMatMul, MatMul, matmul, packed_matmul
from ssd.models.shards import ShardThreads, sharded
from tests.models.rounded import fine_rounded_matmul, rounded_matmul
from tests.models.test_linear import needs_int8
from tests.models.threads import sums_by_threads

NUM_THREADS = (1, 2, 3, 4)


def plain(weight: Tensor, bias: Tensor | None) -> MatMul:
    return lambda x: F.linear(x, weight, bias)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def products(make: MakeMatMul, weight: Tensor, bias: Tensor | None, x: Tensor) -> list[Tensor]:
    """Of one multiply for each number of threads, loaded and run with that number."""
    found = []
    for count in NUM_THREADS:
        torch.set_num_threads(count)
        threads = ShardThreads()
        multiply = sharded(make, threads)(weight, bias)
        with torch.inference_mode(), threads.one_for_each_operation():
            found.append(multiply(x))
        assert torch.get_num_threads() == count
    return found


@pytest.mark.parametrize("rows", [1, 16, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "make",
    [
        plain,
        matmul,
        packed_matmul,
        pytest.param(rounded_matmul, marks=needs_int8),
        pytest.param(fine_rounded_matmul, marks=needs_int8),
        sums_by_threads,
    ],
)
def test_bits_do_not_depend_on_the_number_of_threads(make: MakeMatMul, dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(1500, 576).to(dtype), torch.randn(rows, 576).to(dtype)
    first, *others = products(make, weight, torch.randn(1500).to(dtype), x)
    assert all(torch.equal(first, each) for each in others)


@pytest.mark.parametrize("num_outputs", [1, 255, 700, 20_000])
@pytest.mark.parametrize("with_bias", [True, False])
def test_shards_equal_the_whole(num_outputs: int, with_bias: bool) -> None:
    weight, x = torch.randn(num_outputs, 64), torch.randn(16, 64)
    bias = torch.randn(num_outputs) if with_bias else None
    for found in products(plain, weight, bias, x):
        torch.testing.assert_close(found, F.linear(x, weight, bias))


def test_each_shard_is_multiplied_on_one_thread() -> None:
    seen: list[int] = []

    def noting(weight: Tensor, bias: Tensor | None) -> MatMul:
        def multiply(x: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            return F.linear(x, weight, bias)

        return multiply

    torch.set_num_threads(4)
    threads = ShardThreads()
    multiply = sharded(noting, threads)(torch.randn(8 * 256, 256), None)
    with torch.inference_mode(), threads.one_for_each_operation():
        multiply(torch.randn(2, 256))
    assert seen == [1] * 8


def test_an_error_of_any_shard_reaches_the_caller() -> None:
    def failing(weight: Tensor, bias: Tensor | None) -> MatMul:
        def multiply(x: Tensor) -> Tensor:
            raise RuntimeError("no such multiply")

        return multiply

    torch.set_num_threads(3)
    threads = ShardThreads()
    multiply = sharded(failing, threads)(torch.randn(4 * 256, 512), None)
    with pytest.raises(RuntimeError, match="no such multiply"), threads.one_for_each_operation():
        multiply(torch.randn(2, 512))
    assert torch.get_num_threads() == 3
