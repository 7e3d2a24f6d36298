"""The Gumbel noise g(seed, position, token) that turns sampling into an argmax.

THE definition, for every device and every implementation:

    key     = (seed mod 2³², seed div 2³²)                        of the 64-bit seed
    counter = (token div 4, position, 0, 0)                       word 2 tells streams apart (`chooser.py`)
    n       = word (token mod 4) of Philox4x32-10(counter, key)   one block serves four neighbouring tokens
    u       = (n + ½) / 2³²
    g       = −log(−log1p(−u))                                    in float64, rounded to float32

The vocabulary's size does not enter, so padding it changes nothing. g lies in (−3.14, 22.88): small u is the
winning tail, and it is there that floating point has its resolution; u is never 0 or 1, so g is finite.
Float64 keeps g from depending on how a library splits a vector into body and tail: its last bit may differ
there, the rounded float32 does not.

Knows nothing of logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.sampling.philox import round_keys, run_rounds

# Every g is below this.
NOISE_CEILING = 23.0

MAX_POSITION = 2**32 - 1
_SEED_MASK = 2**64 - 1
_WORD_MASK = 2**32 - 1

# Philox blocks worked on at once: six int64 buffers of this length (0.9 MB) stay within a core's L2 cache.
_CHUNK_BLOCKS = 19_000


def mix_seed(seed: int, index: int) -> int:
    """The seed of the index-th sequence of a request; index 0 keeps the seed as it is.

    Two splitmix64 finalizers: with one, mix(s, i) would equal mix(s + constant, i − 1).
    """
    if index < 0:
        raise ValueError(f"index={index} is refused: sequences count from 0")
    seed &= _SEED_MASK
    return seed if index == 0 else _finalize(_finalize(seed) + index * 0x9E3779B97F4A7C15)


def gumbel_noise(
    seeds: Sequence[int], positions: Sequence[int], vocab_size: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """Noise [R, V] in float32 for R (seed, position) rows and the tokens 0..V−1."""
    keys, places = _row_words(seeds, positions, torch.device(device))
    keys, places = keys.unsqueeze(-1), places.unsqueeze(-1)
    num_rows, num_blocks = len(seeds), -(-vocab_size // 4)
    noise = torch.empty(num_rows, num_blocks, 4, device=device)
    # Many narrow rows go together; one wide row goes in equal pieces.
    rows_step = max(1, _CHUNK_BLOCKS // max(num_blocks, 1))
    pieces = max(1, -(-num_blocks // _CHUNK_BLOCKS))
    blocks_step = max(1, -(-num_blocks // pieces))
    # One scratch for all pieces: fresh memory costs more in page faults than the arithmetic saves.
    scratch = torch.empty(6 * rows_step * blocks_step, dtype=torch.int64, device=device)
    for row in range(0, num_rows, rows_step):
        rows = slice(row, row + rows_step)
        for block in range(0, num_blocks, blocks_step):
            columns = slice(block, block + blocks_step)
            part = noise[rows, columns]
            blocks = torch.arange(block, block + part.shape[1], device=device)
            state, spare = _counters(blocks, places[rows], part.shape[:2], scratch)
            run_rounds(state, spare, keys[:, :, rows])
            for parity in range(2):
                values = gumbel_from_bits(state[parity], scratch=spare)
                part[..., parity] = values[0]
                part[..., parity + 2] = values[1]
    return noise.view(num_rows, 4 * num_blocks)[:, :vocab_size]


def gumbel_noise_at(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Noise of some tokens, in the shape of `token_ids`; bit for bit what `gumbel_noise` holds at them."""
    return gumbel_noise_ragged([seed], [position], [token_ids.reshape(-1)])[0].view(token_ids.shape)


def gumbel_noise_ragged(
    seeds: Sequence[int], positions: Sequence[int], token_ids: Sequence[Tensor]
) -> list[Tensor]:
    """`gumbel_noise_at` for R rows in one go, each row with its own (one-dimensional) choice of tokens.

    A token costs a whole block here, four times its share in `gumbel_noise`.
    """
    if not token_ids:
        return []
    device = token_ids[0].device
    keys, places = _row_words(seeds, positions, device)
    sizes = [len(ids) for ids in token_ids]
    tokens = torch.cat(list(token_ids))
    owners = torch.repeat_interleave(torch.tensor(sizes, device=device))
    noise = torch.empty(len(tokens), device=device)
    scratch = torch.empty(6 * min(len(tokens), _CHUNK_BLOCKS), dtype=torch.int64, device=device)
    for start in range(0, len(tokens), _CHUNK_BLOCKS):
        part = slice(start, start + _CHUNK_BLOCKS)
        ids, owner = tokens[part], owners[part]
        state, spare = _counters(ids >> 2, places[owner], ids.shape, scratch)
        run_rounds(state, spare, (key[:, owner] for key in keys))
        lanes = ids & 3
        words = state.flatten(0, 1).gather(0, ((lanes & 1) * 2 + (lanes >> 1)).unsqueeze(0))
        noise[part] = gumbel_from_bits(words[0], scratch=spare[0])
    return list(torch.split(noise, sizes))


def gumbel_from_bits(bits: Tensor, *, scratch: Tensor | None = None) -> Tensor:
    """g in float64 from integers n in [0, 2**32). `scratch`, of eight bytes an element, is overwritten.

    1 − u = (1 − 2⁻³³) − n·2⁻³² is exact in float64, so log of it is as good as log1p(−u), and faster.
    """
    values = (torch.empty_like(bits) if scratch is None else scratch).view(torch.float64)
    ones = torch.tensor(1.0 - 2.0**-33, dtype=torch.float64, device=bits.device)
    torch.sub(ones, bits, alpha=2.0**-32, out=values)
    return values.log_().neg_().log_().neg_()


def _counters(blocks: Tensor, places: Tensor, shape: Sequence[int], scratch: Tensor) -> tuple[Tensor, Tensor]:
    """Counters (block, position, 0, 0) of a broadcast shape, in `run_rounds` layout, and its spare half."""
    buffer = scratch[: 6 * math.prod(shape)].view(3, 2, *shape)
    buffer[0, 0] = blocks
    buffer[1, 0] = places
    buffer[:2, 1] = 0
    return buffer[:2], buffer[2]


def _row_words(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Round keys [10, 2, R] and positions [R]."""
    for position in positions:
        if not 0 <= position <= MAX_POSITION:
            raise ValueError(f"position={position} is refused: use 0 to {MAX_POSITION}")
    words = [[seed & _WORD_MASK for seed in seeds], [(seed & _SEED_MASK) >> 32 for seed in seeds]]
    keys = round_keys(torch.tensor(words, dtype=torch.int64, device=device))
    return keys, torch.tensor(list(positions), dtype=torch.int64, device=device)


def _finalize(value: int) -> int:
    value &= _SEED_MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _SEED_MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _SEED_MASK
    return value ^ (value >> 31)
