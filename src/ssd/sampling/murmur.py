"""The Gumbel noise of vLLM's V2 model runner, with which a draft ranks tokens for that runner.

vLLM (0.32 and 0.33, v1/worker/gpu/sample/gumbel.py) samples argmax(z/T + g(seed, pos, token)), where

    n = MurmurHash3 x86_32 with seed 0 of the four words (seed mod 2³², seed div 2³², pos, token)
    u = (n div 2¹⁶)·2⁻¹⁶ + (n mod 2¹⁶ + ½)·2⁻³²                      in float32
    g = −log(−L(u)),  L(u) = log(1 − u): for u < ¼ the first eight terms of its series, by Horner's rule

Here as there all is float32, so g equals vLLM's except for the last bit of a logarithm. That costs a hit at
most: vLLM decides every token. vLLM's `pos` is the position of the last known token; ours, as everywhere in
this package, is the position of the token being sampled, one more.
"""

import torch
from torch import Tensor

_WORD = 2**32 - 1
_SERIES_BELOW = 0.25
_LEAST_REST = 2.0**-24
"""1 − u is at least this, as in vLLM."""


def murmur_noise(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Noise in float32; seeds (64 bits), positions and tokens are int64 and broadcast."""
    return gumbel_of_words(murmur_words(seeds, positions, token_ids))


def murmur_words(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """The 32-bit hash of each (seed, position, token), as int64."""
    state = torch.zeros_like(seeds)
    for word in (seeds & _WORD, (seeds >> 32) & _WORD, (positions - 1) & _WORD, token_ids):
        state = _mixed(state, word)
    state = state ^ 16  # The number of bytes hashed.
    state = (state ^ (state >> 16)) * 0x85EBCA6B & _WORD
    state = (state ^ (state >> 13)) * 0xC2B2AE35 & _WORD
    return state ^ (state >> 16)


def gumbel_of_words(words: Tensor) -> Tensor:
    u = (words >> 16).float() * 2.0**-16 + ((words & 0xFFFF).float() + 0.5) * 2.0**-32
    series = torch.full_like(u, 1 / 8)
    for term in (7, 6, 5, 4, 3, 2):
        series = 1 / term + u * series
    series = -u * (1 + u * series)
    direct = (1 - u).clamp(min=_LEAST_REST).log()
    return -torch.log(-torch.where(u < _SERIES_BELOW, series, direct))


def _mixed(state: Tensor, word: Tensor) -> Tensor:
    """One round. Products overflow int64, but their lower 32 bits are right."""
    word = _rotated(word * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    return _rotated(state ^ word, 13) * 5 + 0xE6546B64 & _WORD


def _rotated(word: Tensor, count: int) -> Tensor:
    return (word << count | word >> (32 - count)) & _WORD
