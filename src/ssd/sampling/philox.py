"""Philox4x32-10: 128 random bits as a pure function of a 128-bit counter and a 64-bit key.

(Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.) Words are 32-bit values
held in int64 tensors, so the same integers come out on every device. Knows the generator only; what a
counter or key stands for is `noise.py`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_WORD_BITS = 32


def round_keys(key: Tensor) -> Tensor:
    """Round keys [10, 2, *s] of a key [2, *s], in the slot order that `run_rounds` wants.

    After an even number of rounds slot 0 holds word 0 and takes key 0; after an odd number the slots are
    exchanged. The key of a round is xored in after the exchange, hence the flip in even rounds.
    """
    steps = torch.arange(ROUNDS, device=key.device).view(ROUNDS, *[1] * key.ndim)
    weyl = torch.tensor(_WEYL, device=key.device).view(2, *[1] * (key.ndim - 1))
    keys = (key + steps * weyl) & _MASK
    keys[0::2] = keys[0::2].flip(1)
    return keys


def run_rounds(state: Tensor, spare: Tensor, keys: Iterable[Tensor]) -> None:
    """Encrypt counters in place. `state` [2, 2, *s] holds word 2h+p at [p, h]; `spare` is scratch [2, *s].

    On the CPU the arithmetic runs through numpy views of the same memory: a call costs half of torch's, and
    its int64 product is twice as fast. Elsewhere torch does it. The integers are the same.
    """
    if state.device.type == "cpu":
        _run_rounds(np, state.numpy(), spare.numpy(), (key.numpy() for key in keys), state.device)
    else:
        _run_rounds(torch, state, spare, keys, state.device)


def philox4x32(counter: Tensor, key: Tensor) -> Tensor:
    """Random words [4, *s], int64 in [0, 2**32), of counters [4, *s] under keys [2, *s] or broadcastable."""
    shape = counter.shape[1:]
    state = counter.view(2, 2, *shape).transpose(0, 1).contiguous()
    run_rounds(state, torch.empty_like(state[0]), round_keys(key))
    return state.transpose(0, 1).reshape(4, *shape)


def philox4x32_block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The words of a single counter. In plain integers, which for one block is 20 times as fast as arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        even, odd = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (odd >> _WORD_BITS) ^ c1 ^ k0, odd & _MASK
        c2, c3 = (even >> _WORD_BITS) ^ c3 ^ k1, even & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _run_rounds(lib: Any, state: Any, spare: Any, keys: Iterable[Any], device: torch.device) -> None:
    """The rounds themselves, on arrays of `lib`, which is numpy or torch.

    One round maps words (c0, c1, c2, c3) to (hi(M1·c2)^c1^k0, lo(M1·c2), hi(M0·c0)^c3^k1, lo(M0·c0)). Both
    products are one operation on the even words. Leaving each product in its slot exchanges the slots every
    round; ten rounds bring them back. The low words stay unmasked until the end: what lies above bit 31
    is dropped by the mask of the word they are xored into.
    """
    even, odd = state[0], state[1]
    slot_0, slot_1 = even[0], even[1]
    shift = np.right_shift if lib is np else torch.bitwise_right_shift
    multipliers, mask, word = _constants(lib, device, even.ndim)
    for number, key in enumerate(keys):
        lib.multiply(even, multipliers[number % 2], out=spare)
        shift(spare, word, out=even)  # arithmetic; the mask below makes it logical
        lib.bitwise_xor(even, key, out=even)
        lib.bitwise_xor(slot_0, odd[1], out=slot_0)
        lib.bitwise_xor(slot_1, odd[0], out=slot_1)
        lib.bitwise_and(even, mask, out=even)
        odd, spare = spare, odd
    lib.bitwise_and(odd, mask, out=odd)


@lru_cache(maxsize=32)
def _constants(lib: Any, device: torch.device, ndim: int) -> tuple[tuple[Any, Any], Any, Any]:
    """Multipliers for even and odd rounds, mask and shift. Made once: wrapping an int costs an operation."""
    pair = torch.tensor(_MULTIPLIERS, device=device).view(2, *[1] * (ndim - 1))
    constants = (
        pair,
        pair.flip(0),
        torch.tensor(_MASK, device=device),
        torch.tensor(_WORD_BITS, device=device),
    )
    even, odd, mask, word = (c.numpy() if lib is np else c for c in constants)
    return (even, odd), mask, word
