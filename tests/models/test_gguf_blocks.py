"""Blocks of GGUF files have the bits of the gguf package."""

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from ssd.models.gguf_blocks import unpack

FAST = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")
OTHERS = ("Q5_1", "Q2_K", "Q3_K", "Q5_K", "F16", "BF16", "F32")


def random_rows(encoding: str, num_rows: int, num_weights: int) -> NDArray[np.uint8]:
    """Any bytes: every number of every field occurs, broken scales among them."""
    block, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[encoding]]
    shape = (num_rows, num_weights // block * num_bytes)
    return np.random.default_rng(len(encoding)).integers(0, 256, shape, dtype=np.uint8)


def by_package(rows: NDArray[np.uint8], encoding: str) -> NDArray[np.float32]:
    found: NDArray[np.float32] = gguf.dequantize(rows, gguf.GGMLQuantizationType[encoding])
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("encoding", [*FAST, *OTHERS])
def test_every_bit_is_the_packages(encoding: str) -> None:
    rows = random_rows(encoding, 64, 1536)
    found = np.empty((64, 1536), np.float32)
    unpack(rows, encoding, found)
    expected = np.ascontiguousarray(by_package(rows, encoding), dtype=np.float32)
    # Even of what is no number: equal as bits.
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
