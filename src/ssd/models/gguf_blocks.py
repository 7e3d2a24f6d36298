"""Dequantises blocks of GGUF files to float32: the same bits as the gguf package, in a third of the time.

Knows the bit layout of common formats; other formats go through the gguf package. Each weight is a small
integer times the scale of its group, plus a shift in some formats. The operations have the package's order,
so that every rounding is the same.
"""

from collections.abc import Callable

import gguf
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_NIBBLE = 15


def unpack(rows: Bytes, encoding: str, out: Floats) -> None:
    """Writes the weights [R, N] of R rows of bytes to `out`."""
    kind = gguf.GGMLQuantizationType[encoding]
    unpack_blocks = _BY_ENCODING.get(encoding)
    if unpack_blocks is None:
        out[:] = gguf.dequantize(rows, kind)
        return
    num_weights, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    unpack_blocks(rows.reshape(-1, num_bytes), out.reshape(-1, num_weights))


def _q4_0(blocks: Bytes, out: Floats) -> None:
    whole = _nibbles(blocks[:, 2:]).view(np.int8)
    whole -= 8
    np.multiply(whole.reshape(out.shape), _halves(blocks[:, :2]), out=out)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    np.multiply(_nibbles(blocks[:, 4:]).reshape(out.shape), _halves(blocks[:, :2]), out=out)
    out += _halves(blocks[:, 2:4])


def _q5_0(blocks: Bytes, out: Floats) -> None:
    high = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    whole = (_nibbles(blocks[:, 6:]).reshape(out.shape) | (high << 4)).view(np.int8)
    whole -= 16
    np.multiply(whole, _halves(blocks[:, :2]), out=out)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _halves(blocks[:, :2]), out=out)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    num_blocks = len(blocks)
    # Eight scales and eight shifts of six bits; the first bytes hold the upper two bits of the later ones.
    scales, shifts, both = (blocks[:, first : first + 4] for first in (4, 8, 12))
    scales_of = np.concatenate([scales & 63, (both & _NIBBLE) | ((scales >> 2) & 48)], axis=1)
    shifts_of = np.concatenate([shifts & 63, (both >> 4) | ((shifts >> 2) & 48)], axis=1)
    out[:] = _nibbles(blocks[:, 16:].reshape(num_blocks, 4, 32)).reshape(out.shape)
    groups = out.reshape(num_blocks, 8, 32)
    groups *= (_halves(blocks[:, :2]) * scales_of)[:, :, None]
    groups -= (_halves(blocks[:, 2:4]) * shifts_of)[:, :, None]


def _q6_k(blocks: Bytes, out: Floats) -> None:
    num_blocks = len(blocks)
    whole = _nibbles(blocks[:, :128].reshape(num_blocks, 2, 64)).reshape(num_blocks, 2, 4, 32)
    high = blocks[:, 128:192].reshape(num_blocks, 2, 32)
    # A byte holds the two upper bits of four weights: shift each pair above its nibble.
    for quarter, shifted in enumerate((high << 4, high << 2, high, high >> 2)):
        whole[:, :, quarter] |= shifted & 48
    signed = whole.view(np.int8)
    signed -= 32
    out[:] = signed.reshape(out.shape)
    groups = out.reshape(num_blocks, 16, 16)
    groups *= (_halves(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8))[:, :, None]


_BY_ENCODING: dict[str, Callable[[Bytes, Floats], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}


def _halves(pairs: Bytes) -> Floats:
    """The float16 number of each block, as float32."""
    return pairs.copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[..., N] bytes as [..., 2, N]: the lower halves of all bytes, then the upper halves."""
    halves = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, _NIBBLE, out=halves[..., 0, :])
    np.right_shift(packed, 4, out=halves[..., 1, :])
    return halves
