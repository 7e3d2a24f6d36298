"""The noise of `sampling/noise.py` and `sampling/murmur.py` in kernels.

The first has the same Philox bits and the same float64 arithmetic: g is computed in float64 and rounded to
float32. If two libraries' logarithms differ in the last bit of float64, the rounded values differ once in
some 2²⁸. Knows counters and keys. Does not know scores.
"""

from ssd.kernels.language import jit, tl


@jit()
def philox(block, position, key_low, key_high):
    """The four words of Philox4x32-10 for counters (block, position, 0, 0), all uint32 of the same shape."""
    c0, c1 = block, position
    c2, c3 = block * 0, block * 0
    for _ in tl.static_range(10):
        even_low, even_high = c0 * 0xD2511F53, tl.umulhi(c0, c0 * 0 + 0xD2511F53)
        odd_low, odd_high = c2 * 0xCD9E8D57, tl.umulhi(c2, c2 * 0 + 0xCD9E8D57)
        c0, c1 = odd_high ^ c1 ^ key_low, odd_low
        c2, c3 = even_high ^ c3 ^ key_high, even_low
        key_low += 0x9E3779B9
        key_high += 0xBB67AE85
    return c0, c1, c2, c3


@jit()
def gumbel(words):
    """g from 32 random bits n: −log(−log(1 − (n + ½)/2³²)), where 1 − … is exact in float64."""
    rest = (4294967295 - words.to(tl.int64)) * 2 + 1
    return (-tl.log(-tl.log(rest.to(tl.float64) * 1.1641532182693481e-10))).to(tl.float32)


@jit()
def noise_of_run(seed, position, first, count: tl.constexpr):
    """g of the tokens first … first + count − 1; both must be multiples of four, the tokens of a block."""
    blocks = (first // 4 + tl.arange(0, count // 4)).to(tl.uint32)
    nothing = blocks * 0
    w0, w1, w2, w3 = philox(
        blocks,
        nothing + position.to(tl.uint32),
        nothing + seed.to(tl.uint32),
        nothing + (seed >> 32).to(tl.uint32),
    )
    return gumbel(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@jit()
def noise_of_tokens(seed, position, tokens):
    """g of any tokens; computes one block for each."""
    blocks = (tokens // 4).to(tl.uint32)
    nothing = blocks * 0
    w0, w1, w2, w3 = philox(
        blocks,
        nothing + position.to(tl.uint32),
        nothing + seed.to(tl.uint32),
        nothing + (seed >> 32).to(tl.uint32),
    )
    lane = tokens % 4
    words = tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))
    return gumbel(words)


@jit()
def murmur_round(state, word):
    word *= 0xCC9E2D51
    word = ((word << 15) | (word >> 17)) * 0x1B873593
    state ^= word
    return ((state << 13) | (state >> 19)) * 5 + 0xE6546B64


@jit()
def murmur_of_tokens(seed, position, tokens):
    """g of any tokens as vLLM's V2 runner has it."""
    words = tokens.to(tl.uint32)
    nothing = words * 0
    state = murmur_round(nothing, nothing + seed.to(tl.uint32))
    state = murmur_round(state, nothing + (seed >> 32).to(tl.uint32))
    state = murmur_round(state, nothing + (position - 1).to(tl.uint32))
    state = murmur_round(state, words) ^ 16
    state = (state ^ (state >> 16)) * 0x85EBCA6B
    state = (state ^ (state >> 13)) * 0xC2B2AE35
    state ^= state >> 16
    high, low = (state >> 16).to(tl.float32), (state & 0xFFFF).to(tl.float32)
    u = high * 1.52587890625e-05 + (low + 0.5) * 2.3283064365386963e-10
    series = u * 0.125 + 0.14285714285714285
    series = u * series + 0.16666666666666666
    series = u * series + 0.2
    series = u * series + 0.25
    series = u * series + 0.3333333333333333
    series = u * series + 0.5
    series = -u * (u * series + 1.0)
    direct = tl.log(tl.maximum(1.0 - u, 5.960464477539063e-08))
    return -tl.log(-tl.where(u < 0.25, series, direct))
