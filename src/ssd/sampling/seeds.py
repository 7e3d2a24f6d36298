"""The 64-bit seed of a sequence: from the caller, mixed with its index, or derived from the request id."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

_MASK = 2**64 - 1


def mix_seed(seed: int, index: int) -> int:
    """The seed of the index-th sequence of a request; index 0 keeps the seed as it is.

    Two splitmix64 finalizers: with one, mix(s, i) would equal mix(s + constant, i − 1).
    """
    if index < 0:
        raise ValueError(f"index={index} is refused: sequences count from 0")
    seed &= _MASK
    return seed if index == 0 else _finalize(_finalize(seed) + index * 0x9E3779B97F4A7C15)


def seed_of(request_id: str, salt: str) -> int:
    """The seed of a request without one: the same in every process with the same salt."""
    key = blake2b(salt.encode()).digest()
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8, key=key).digest(), "little")


def seed_tensor(seeds: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """The bits of 64-bit seeds, of any sign, as int64 [R]."""
    words = np.array([seed & _MASK for seed in seeds], dtype=np.uint64)
    return torch.from_numpy(words.view(np.int64)).to(device)


def _finalize(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
