"""Philox4x32-10: 128 random bits as a pure function of a 128-bit counter and a 64-bit key.

(Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.) Words are 32-bit values
stored in int64 tensors, so every device computes the same integers. Knows the generator only; `noise.py`
defines the meaning of counters and keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_WORD_BITS = 32


def is_recorded() -> bool:
    """Whether torch's operations are being recorded for replay: they then need fixed shapes and no numpy."""
    return _get_current_dispatch_mode() is not None


def run_rounds(state: Tensor, spare: Tensor, key: Tensor) -> None:
    """Encrypts counters in place. `state` [2, 2, *s] has word 2h+p at [p, h]; `spare` is scratch [2, *s].

    The key is [2, *s] or broadcastable. On the CPU this uses numpy views of the same memory: calls take half
    of torch's time, and int64 products are twice as fast. On other devices, and while torch's operations are
    recorded, it uses torch. The integers are the same.
    """
    keys = torch.cat((key[1:], key))
    if state.device.type == "cpu" and not is_recorded():
        _run_rounds(np, state.numpy(), spare.numpy(), keys.numpy(), state.device)
    else:
        _run_rounds(torch, state, spare, keys, state.device)


def philox4x32_block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The words of a single counter, in Python integers: for one block 20 times as fast as arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        even, odd = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (odd >> _WORD_BITS) ^ c1 ^ k0, odd & _MASK
        c2, c3 = (even >> _WORD_BITS) ^ c3 ^ k1, even & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _run_rounds(lib: Any, state: Any, spare: Any, keys: Any, device: torch.device) -> None:
    """Runs the rounds on arrays of `lib`, which is numpy or torch.

    One round maps words (c0, c1, c2, c3) to (hi(M1·c2)^c1^k0, lo(M1·c2), hi(M0·c0)^c3^k1, lo(M0·c0)). Both
    products are one operation on the even words. Each product stays in its slot, so the slots are exchanged
    every round, and restored after ten. `keys` are the words (k1, k0, k1): even rounds use the first two, odd
    rounds the last two. They are incremented in place. Bits above 31 of a key or of a low word are removed by
    masking the word that they are xored into.
    """
    even, odd = state[0], state[1]
    slot_0, slot_1 = even[0], even[1]
    shift = np.right_shift if lib is np else torch.bitwise_right_shift
    multipliers, weyl, mask, word = _constants(lib, device, even.ndim)
    for number in range(ROUNDS):
        first = number % 2
        lib.multiply(even, multipliers[first], out=spare)
        shift(spare, word, out=even)  # arithmetic; the mask below makes it logical
        lib.bitwise_xor(even, keys[first : first + 2], out=even)
        lib.bitwise_xor(slot_0, odd[1], out=slot_0)
        lib.bitwise_xor(slot_1, odd[0], out=slot_1)
        lib.bitwise_and(even, mask, out=even)
        lib.add(keys, weyl, out=keys)
        odd, spare = spare, odd
    lib.bitwise_and(odd, mask, out=odd)


@lru_cache(maxsize=32)
def _constants(lib: Any, device: torch.device, ndim: int) -> tuple[tuple[Any, Any], Any, Any, Any]:
    """Multipliers for even and odd rounds, key steps, mask, shift. Cached: making tensors takes time."""
    pair = torch.tensor(_MULTIPLIERS, device=device).view(2, *[1] * (ndim - 1))
    constants = (
        pair,
        pair.flip(0),
        torch.tensor((_WEYL[1], *_WEYL), device=device).view(3, *[1] * (ndim - 1)),
        torch.tensor(_MASK, device=device),
        torch.tensor(_WORD_BITS, device=device),
    )
    even, odd, weyl, mask, word = (c.numpy() if lib is np else c for c in constants)
    return (even, odd), weyl, mask, word
