"""The noise of vLLM's V2 runner: MurmurHash3 by its published definition, on bytes; the rest in float64."""

import math
import struct

import pytest
import torch

from ssd.sampling.murmur import gumbel_of_words, murmur_noise, murmur_words

SEEDS = [0, 1, -1, 2**63 - 1, -(2**63), 123456789 << 20]
POSITIONS = [1, 2, 131072, 7, 4096, 33]
TOKENS = [0, 1, 49151, 151935, 12345, 7]


def murmur3(data: bytes) -> int:
    """MurmurHash3 x86_32 with seed 0, of whole words."""
    state = 0
    for (word,) in struct.iter_unpack("<I", data):
        word = word * 0xCC9E2D51 % 2**32
        word = (word << 15 | word >> 17) % 2**32 * 0x1B873593 % 2**32
        state ^= word
        state = ((state << 13 | state >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B % 2**32
    state = (state ^ state >> 13) * 0xC2B2AE35 % 2**32
    return state ^ state >> 16


def test_the_oracle_has_published_values() -> None:
    assert murmur3(b"") == 0
    assert murmur3(b"test") == 0xBA6BD213
    assert murmur3(bytes(4)) == 0x2362F9DE


def test_words_are_the_hash_of_seed_position_and_token() -> None:
    found = murmur_words(*(torch.tensor(each) for each in (SEEDS, POSITIONS, TOKENS)))
    rows = zip(SEEDS, POSITIONS, TOKENS, strict=True)
    assert found.tolist() == [
        murmur3(struct.pack("<QII", seed % 2**64, at - 1, token)) for seed, at, token in rows
    ]


@pytest.mark.parametrize("word", [0, 1, 2**16, 2**30 - 1, 2**30, 2**31, 2**32 - 2**8 - 1, 2**32 - 1])
def test_noise_is_a_gumbel_variable(word: int) -> None:
    found = float(gumbel_of_words(torch.tensor([word])))
    # Near 1, u has float32's resolution of 2⁻²⁴.
    rest = max(1.0 - (word + 0.5) / 2**32, 2.0**-24)
    assert found == pytest.approx(-math.log(-math.log(rest)), rel=1e-4, abs=2e-5)


def test_seeds_positions_and_tokens_broadcast() -> None:
    seeds, positions = torch.tensor(SEEDS).unsqueeze(1), torch.tensor(POSITIONS).unsqueeze(1)
    whole = murmur_noise(seeds, positions, torch.tensor(TOKENS))
    assert whole.shape == (6, 6)
    single = murmur_noise(torch.tensor(SEEDS[4]), torch.tensor(POSITIONS[4]), torch.tensor(TOKENS[2]))
    assert whole[4, 2] == single
