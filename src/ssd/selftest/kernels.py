"""Compares our kernels with torch on the CPU: the logits of a tiny model, and what is decided from logits."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ssd.attention.fused import FusedBackend
from ssd.attention.inputs import Branches, PlainInput
from ssd.attention.sdpa import SdpaBackend
from ssd.kernels import rows
from ssd.kernels.decide import decide_rows
from ssd.kernels.floors import floors_of
from ssd.kernels.kv import move_kv
from ssd.kernels.language import can_launch
from ssd.kernels.vocabulary import children_of
from ssd.models import row_math
from ssd.models.decoder import DenseDecoder
from ssd.runtime.eager import EagerRunner
from ssd.runtime.runner import forward
from ssd.sampling import Draws, Truncation
from ssd.sampling.murmur import murmur_noise
from ssd.sampling.noise import noise_of_tokens
from ssd.sampling.select import largest_values
from ssd.sampling.truncation import candidate_floors, whole_floors
from ssd.sampling.whole import decide_whole, scaled
from ssd.selftest.made_up import BLOCK, TINY, RandomWeights, made_up_pool
from ssd.selftest.results import CheckResult

_PART = "kernels"
_CPU = torch.device("cpu")
_NUM_ROWS, _VOCAB, _CANDIDATES, _CHILDREN = 5, 2500, 256, 4
_TEXT = 300
"""Length of the model's text in tokens: long enough that attention splits it among programs."""


def kernel_results(device: torch.device) -> Iterator[CheckResult]:
    if can_launch(device):
        yield from compared(device)
    else:
        yield CheckResult(_PART, "all", "torch computes everything: no GPU, or no Triton", "not run")


def compared(device: torch.device) -> Iterator[CheckResult]:
    """A result for each group of kernels: its largest difference from torch, and what rounding explains."""
    checks: dict[str, tuple[Callable[[torch.device], float], float]] = {
        "attention, rope, norm, kv": (_forward_gap, 1e-3),
        "move": (_moved_gap, 0.0),
        "decide": (_decided_gap, 0.0),
        "floors": (_floors_gap, 1e-5),
        "children": (_children_gap, 2e-5),
    }
    for what, (measure, bound) in checks.items():
        try:
            worst = measure(device)
        except Exception as error:  # From the compiler or the driver.
            yield CheckResult(_PART, what, f"{type(error).__name__}: {error}"[:300], "failed")
            continue
        found = f"differ from torch by {worst:.1e}; rounding explains at most {bound:.0e}"
        yield CheckResult(_PART, what, found, "ok" if worst <= bound else "failed")


def _forward_gap(device: torch.device) -> float:
    gaps = (_logits_of_model(device, by_kernels=True) - _logits_of_model(_CPU, by_kernels=False)).abs()
    return float(gaps.nan_to_num(float("inf")).max())


@torch.inference_mode()
def _logits_of_model(device: torch.device, *, by_kernels: bool) -> Tensor:
    """Logits of a prompt, of rows that follow it, and of a tree after it."""
    torch.manual_seed(0)
    config = TINY.config
    model = DenseDecoder(
        *(config, RandomWeights(config, _CPU, torch.float32)),
        num_positions=config.max_position,
        dtype=torch.float32,
        device=device,
        row_math=row_math.RowMath(rows.add_norm, rows.silu_mul)
        if by_kernels
        else row_math.RowMath(row_math.add_norm, row_math.silu_mul),
    )
    pool = made_up_pool(config, device, torch.float32, num_trees=1)
    attention = (FusedBackend if by_kernels else SdpaBackend)(pool, config.num_heads, deterministic=False)
    runner = EagerRunner(model, attention, pool)
    blocks = range(-(-(_TEXT + 8) // BLOCK))
    text = [number * 7 % config.vocab_size for number in range(_TEXT)]
    # The second node follows the first, and the third begins another branch.
    branches = Branches(
        [_TEXT, _TEXT + 1, _TEXT], _TEXT, pool.shape.tree_start(0), [0, 5, 70], [1, 33, 1 << 70]
    )
    steps = (
        PlainInput(text, 0, blocks, 8, generated=False),
        PlainInput([11, 12, 13, 14, 15], _TEXT, blocks, 5, generated=True),
        PlainInput([21, 22, 23], _TEXT, blocks, 3, generated=True, branches=branches),
    )
    return torch.cat([forward(runner, [each]).cpu() for each in steps])


def _moved_gap(device: torch.device) -> float:
    pool, other = (made_up_pool(TINY.config, each, torch.float32, num_trees=1) for each in (device, _CPU))
    for given, same in ((pool.keys, other.keys), (pool.values, other.values)):
        given.copy_(same.normal_(generator=torch.Generator().manual_seed(0)))
    moves = torch.tensor([3, 40, 17]), torch.tensor([60, 2, 31])
    move_kv(pool.keys, pool.values, *(each.to(device) for each in moves))
    other.move(*moves)
    is_same = torch.equal(pool.keys.cpu(), other.keys) and torch.equal(pool.values.cpu(), other.values)
    return 0.0 if is_same else float("inf")


def _decided_gap(device: torch.device) -> float:
    """The number of tokens that differ."""
    logits, draws, floors = _drawn()
    got = decide_rows(logits.to(device), draws.to(device), floors.to(device))
    return float((got.cpu() != decide_whole(logits, draws)).sum())


def _floors_gap(device: torch.device) -> float:
    logits, draws, _ = _drawn()
    largest, there = largest_values(logits, _CANDIDATES), draws.to(device)
    assert draws.truncation is not None
    assert there.truncation is not None
    got = floors_of(logits.to(device), largest.to(device), there.temperatures, there.truncation).cpu()
    divisors = torch.where(draws.temperatures == 0.0, 1.0, draws.temperatures)
    wanted = candidate_floors(scaled(largest, divisors), scaled(logits, divisors), draws.truncation)
    wanted = torch.where(draws.temperatures == 0.0, -torch.inf, wanted)
    return float(torch.where(got == wanted, 0.0, (got - wanted).abs()).max())


def _children_gap(device: torch.device) -> float:
    logits, draws, floors = _drawn()
    # Every second row has the noise of vLLM's V2 runner.
    draws = replace(draws, is_murmur=torch.arange(_NUM_ROWS) % 2 == 1)
    got = children_of(logits.to(device), draws.to(device), floors.to(device), _CHILDREN, None)
    tokens, shares = (each.cpu() for each in got)
    wanted, known = children_of_rows(logits, draws, floors, _CHILDREN)
    return float((shares.exp() - known.exp()).abs().max()) if torch.equal(tokens, wanted) else float("inf")


def _drawn() -> tuple[Tensor, Draws, Tensor]:
    """Random logits, how each row is drawn, and the floors of truncation."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(_NUM_ROWS, _VOCAB, generator=generator)
    logits[:, 7::11] = -torch.inf
    seeds = torch.randint(-(2**63), 2**63 - 1, (_NUM_ROWS,), generator=generator)
    positions = torch.randint(0, 2**32, (_NUM_ROWS,), generator=generator)
    temperatures = torch.tensor([0.0, 0.7, 1.0, 1.3, 0.05])
    ones = torch.ones(_NUM_ROWS, dtype=torch.float64)
    truncation = Truncation(-6.0 * ones, torch.full_like(seeds, 50), 0.9 * ones)
    floors = whole_floors(scaled(logits, torch.where(temperatures == 0.0, 1.0, temperatures)), truncation)
    return logits, Draws(seeds, positions, temperatures, truncation), floors


def children_of_rows(
    logits: Tensor, draws: Draws, floors: Tensor | None, count: int, head_tokens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The torch form of `children_of`; of equal scores the lower column comes first."""
    num_rows, num_columns = logits.shape
    device = logits.device
    ids = torch.arange(num_columns, device=device) if head_tokens is None else head_tokens
    owners = torch.arange(num_rows, device=device).repeat_interleave(num_columns)
    noise = noise_of_tokens(draws.seeds, draws.positions, owners, ids.repeat(num_rows)).view(logits.shape)
    if draws.is_murmur is not None:
        murmur = murmur_noise(draws.seeds.unsqueeze(1), draws.positions.unsqueeze(1), ids)
        noise = torch.where(draws.is_murmur.unsqueeze(1), murmur, noise)
    is_greedy = (draws.temperatures == 0.0).unsqueeze(1)
    scores = logits.float() / torch.where(is_greedy, 1.0, draws.temperatures.unsqueeze(1))
    noisy = scores + noise
    if floors is not None:
        noisy = noisy.masked_fill(scores < floors.unsqueeze(1), -torch.inf)
    total = torch.where(is_greedy, scores, noisy)
    best, order = total.sort(dim=1, descending=True, stable=True)
    lacking = max(0, count - num_columns)
    best = functional.pad(best[:, :count], (0, lacking), value=-torch.inf)
    order = functional.pad(order[:, :count], (0, lacking))
    is_child = best > -torch.inf
    shares = best - total.logsumexp(1, keepdim=True)
    return torch.where(is_child, ids[order], 0), torch.where(is_child, shares, -torch.inf)
