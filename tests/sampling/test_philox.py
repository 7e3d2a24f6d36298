"""Philox4x32-10 against its published vectors and against plain Python integers, on both array libraries."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from ssd.sampling import philox
from ssd.sampling.philox import philox4x32_block, run_rounds

ONES = 0xFFFFFFFF

# Random123, kat_vectors: philox4x32 with 10 rounds.
VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def philox4x32(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Words [4, *s] of counters [4, *s] under keys [2, *s] or broadcastable."""
    state = (
        counter.view(2, 2, *counter.shape[1:]).transpose(0, 1).clone(memory_format=torch.contiguous_format)
    )
    run_rounds(state, torch.empty_like(state[0]), key)
    return state.transpose(0, 1).reshape(counter.shape)


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * c[0], 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high_1 ^ c[1] ^ k[0], low_1, high_0 ^ c[3] ^ k[1], low_0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert plain_philox(counter, key) == expected
    words = philox4x32(torch.tensor(counter).view(4, 1), torch.tensor(key).view(2, 1))
    assert words.flatten().tolist() == expected
    assert list(philox4x32_block((*counter,), (*key,))) == expected  # type: ignore[arg-type]


def random_words(rng: random.Random, count: int, width: int) -> list[list[int]]:
    special = [0, 1, ONES, ONES - 1, 2**31, 2**31 - 1]
    return [
        [rng.choice(special) if rng.random() < 0.2 else rng.getrandbits(32) for _ in range(width)]
        for _ in range(count)
    ]


@pytest.mark.parametrize("lib", [np, torch])
def test_random_counters_match_plain_integers(lib: Any) -> None:
    rng = random.Random(1)
    counters, keys = random_words(rng, 1000, 4), random_words(rng, 1000, 2)
    counter, key = torch.tensor(counters).T.contiguous(), torch.tensor(keys).T.contiguous()
    state = counter.view(2, 2, -1).transpose(0, 1).contiguous()
    spare = torch.empty_like(state[0])
    schedule = key[[1, 0, 1]]
    if lib is np:
        philox._run_rounds(np, state.numpy(), spare.numpy(), schedule.numpy(), state.device)
    else:
        philox._run_rounds(torch, state, spare, schedule, state.device)
    words = state.transpose(0, 1).reshape(4, -1).T.tolist()
    assert words == [plain_philox(c, k) for c, k in zip(counters, keys, strict=True)]
    assert torch.equal(philox4x32(counter, key).T, torch.tensor(words))
