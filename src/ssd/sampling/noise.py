"""The Gumbel noise g(seed, position, token) that turns sampling into an argmax.

The definition, for every device and every implementation:

    key     = (seed mod 2³², seed div 2³²)                        of the 64-bit seed
    counter = (token div 4, position, 0, 0)                       word 2 tells streams apart (`chooser.py`)
    n       = word (token mod 4) of Philox4x32-10(counter, key)   one block serves four neighbouring tokens
    u       = (n + ½) / 2³²
    g       = −log(−log1p(−u))                                    in float64, rounded to float32

g does not depend on the size of the vocabulary, so padding changes nothing. g is in (−3.14, 22.88), and
finite, because u is never 0 or 1. Large g, which decide the argmax, come from small u, where floating point
is most precise. A library may compute the vector body and the tail of an array differently in the last bit of
float64; rounded to float32 they are the same.

Does not know logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.sampling.philox import philox4x32_block, run_rounds
from ssd.sampling.seeds import seed_tensor

# Bounds of g.
NOISE_BOTTOM = -3.2
NOISE_CEILING = 23.0

MAX_POSITION = 2**32 - 1
_WORD_MASK = 2**32 - 1

# On CPUs: six int64 buffers of this length (0.9 MB) stay in a core's L2 cache.
_CACHED_BLOCKS = 19_000
# On other devices: few launches, and buffers of at most 200 MB.
_DEVICE_BLOCKS = 1 << 22
# Up to this many tokens, Python integers are faster than arrays.
_SINGLES = 16


def gumbel_noise_at(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Noise of these tokens, in the shape of `token_ids`; the same bits as in `noise_of_rows`."""
    return gumbel_noise_ragged([seed], [position], [token_ids.reshape(-1)])[0].view(token_ids.shape)


def gumbel_noise_ragged(
    seeds: Sequence[int], positions: Sequence[int], token_ids: Sequence[Tensor]
) -> list[Tensor]:
    """`gumbel_noise_at` for R rows at once, each with its own tokens (one-dimensional)."""
    if not token_ids:
        return []
    device = token_ids[0].device
    sizes = [len(ids) for ids in token_ids]
    owners = torch.repeat_interleave(torch.tensor(sizes, device=device))
    keys, places = seed_tensor(seeds, device), _position_tensor(positions, device)
    return list(torch.split(noise_of_tokens(keys, places, owners, torch.cat(list(token_ids))), sizes))


def noise_of_rows(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Noise [R, V] in float32 of R (seed, position) rows, both int64."""
    device, num_rows, num_blocks = seeds.device, len(seeds), -(-vocab_size // 4)
    keys, places = _keys(seeds).unsqueeze(-1), positions.unsqueeze(-1)
    noise = torch.empty(num_rows, num_blocks, 4, device=device)
    most = _most_blocks(device)
    # A piece is several narrow rows, or an equal part of one wide row.
    rows_step = max(1, min(num_rows, most // max(num_blocks, 1)))
    pieces = max(1, -(-num_blocks // most))
    blocks_step = max(1, -(-num_blocks // pieces))
    # All pieces share one scratch buffer: page faults of new memory take longer than the arithmetic.
    scratch = torch.empty(6 * rows_step * blocks_step, dtype=torch.int64, device=device)
    for row in range(0, num_rows, rows_step):
        rows = slice(row, row + rows_step)
        for block in range(0, num_blocks, blocks_step):
            columns = slice(block, block + blocks_step)
            part = noise[rows, columns]
            blocks = torch.arange(block, block + part.shape[1], device=device)
            state, spare = _counters(blocks, places[rows], part.shape[:2], scratch)
            run_rounds(state, spare, keys[:, rows])
            for parity in range(2):
                values = gumbel_from_bits(state[parity], scratch=spare)
                part[..., parity] = values[0]
                part[..., parity + 2] = values[1]
    return noise.view(num_rows, 4 * num_blocks)[:, :vocab_size]


def noise_of_tokens(seeds: Tensor, positions: Tensor, owners: Tensor, token_ids: Tensor) -> Tensor:
    """Noise [N] of single tokens, each with the seed and position of the row that owns it.

    Computes a whole block for each token, so a token takes four times as long as in `noise_of_rows`.
    """
    device, most = token_ids.device, _most_blocks(token_ids.device)
    if device.type == "cpu" and len(token_ids) <= _SINGLES:
        return _noise_of_singles(seeds, positions, owners, token_ids)
    keys = _keys(seeds)
    noise = torch.empty(len(token_ids), device=device)
    scratch = torch.empty(6 * min(len(token_ids), most), dtype=torch.int64, device=device)
    for start in range(0, len(token_ids), most):
        part = slice(start, start + most)
        ids, owner = token_ids[part], owners[part]
        state, spare = _counters(ids >> 2, positions[owner], ids.shape, scratch)
        run_rounds(state, spare, keys[:, owner])
        lanes = ids & 3
        words = state.flatten(0, 1).gather(0, ((lanes & 1) * 2 + (lanes >> 1)).unsqueeze(0))
        noise[part] = gumbel_from_bits(words[0], scratch=spare[0])
    return noise


def _noise_of_singles(seeds: Tensor, positions: Tensor, owners: Tensor, token_ids: Tensor) -> Tensor:
    """`noise_of_tokens` for a few tokens, one after the other."""
    keys, places = (
        [(seed & _WORD_MASK, seed >> 32 & _WORD_MASK) for seed in seeds.tolist()],
        positions.tolist(),
    )
    bits = [
        philox4x32_block((token >> 2, places[row], 0, 0), keys[row])[token & 3]
        for row, token in zip(owners.tolist(), token_ids.tolist(), strict=True)
    ]
    return gumbel_from_bits(torch.tensor(bits, dtype=torch.int64)).float()


def gumbel_from_bits(bits: Tensor, *, scratch: Tensor | None = None) -> Tensor:
    """g in float64 from integers n in [0, 2**32). Overwrites `scratch`, which has eight bytes an element.

    1 − u = (1 − 2⁻³³) − n·2⁻³² is exact in float64, so its log is as precise as log1p(−u), and faster.
    """
    values = (torch.empty_like(bits) if scratch is None else scratch).view(torch.float64)
    # torch.full, because copying a number to the device would wait for it.
    ones = torch.full((), 1.0 - 2.0**-33, dtype=torch.float64, device=bits.device)
    torch.sub(ones, bits, alpha=2.0**-32, out=values)
    return values.log_().neg_().log_().neg_()


def _counters(blocks: Tensor, places: Tensor, shape: Sequence[int], scratch: Tensor) -> tuple[Tensor, Tensor]:
    """Counters (block, position, 0, 0) of a broadcast shape, in `run_rounds` layout, and scratch for it."""
    buffer = scratch[: 6 * math.prod(shape)].view(3, 2, *shape)
    buffer[0, 0] = blocks
    buffer[1, 0] = places
    buffer[:2, 1].zero_()
    return buffer[:2], buffer[2]


def _keys(seeds: Tensor) -> Tensor:
    """Keys [2, R] of 64-bit seeds [R]."""
    return torch.stack((seeds & _WORD_MASK, (seeds >> 32) & _WORD_MASK))


def _position_tensor(positions: Sequence[int], device: torch.device | str) -> Tensor:
    for position in positions:
        if not 0 <= position <= MAX_POSITION:
            raise ValueError(f"position={position} is refused: use 0 to {MAX_POSITION}")
    return torch.tensor(list(positions), dtype=torch.int64, device=device)


def _most_blocks(device: torch.device) -> int:
    """Philox blocks in a piece."""
    return _CACHED_BLOCKS if device.type == "cpu" else _DEVICE_BLOCKS
