"""Compares each kernel of a model with its torch form, on cases of any shape.

Slots that no row sees contain NaN, so a kernel that reads them fails. The torch form computes in float32. The
kernels of a draft's trees are in `tree_checks.py`.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ssd.attention.batch import Batch, BatchWriter
from ssd.attention.fused import FusedBackend
from ssd.attention.inputs import Branches, Layout, PlainInput
from ssd.attention.paged import PagedBackend
from ssd.attention.rotation import Rotation
from ssd.kernels import rows
from ssd.kernels.decide import decide_rows
from ssd.kernels.floors import floors_of
from ssd.kernels.kv import move_kv
from ssd.kernels.vocabulary import children_of
from ssd.kvcache.pool import NODES_PER_TREE, KVPool, PoolShape
from ssd.models import row_math
from ssd.sampling import Draws, Truncation
from ssd.sampling.select import largest_values
from ssd.sampling.truncation import candidate_floors, whole_floors
from ssd.sampling.whole import decide_whole, scaled
from ssd.selftest.kernels import children_of_rows

BOUNDS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}
"""Largest difference of attention from its torch form in float32, for inputs of order 1."""
_INFINITE = float("inf")
_SHARE_BOUND = 2e-5
_CANDIDATES = 256
_CUTS = (
    (-_INFINITE, 0, 0.9),
    (-_INFINITE, 40, 1.0),
    (-2.0, 3, 1.0),
    (-6.0, 50, 0.6),
    (-_INFINITE, 0, 0.999999),
)
"""min_p as a logarithm, top_k and top_p. Random logits are so flat that the last one's floor is not found."""


@dataclass(frozen=True, slots=True)
class KernelCheckResult:
    kernel: str
    case: str
    worst: float
    bound: float
    error: str = ""
    """The exception, if the kernel raised one."""

    @property
    def is_sound(self) -> bool:
        return self.worst <= self.bound

    @property
    def description(self) -> str:
        if self.error:
            return self.error
        return f"differs by {self.worst:.1e}; rounding explains at most {self.bound:.0e}"


@dataclass(frozen=True, slots=True)
class CaseSequence:
    """One sequence of a case: `count` rows after `start` keys of its text."""

    start: int
    count: int
    grown: int | None = None
    """Number of existing nodes of its tree; None: the rows are plain text."""


@dataclass(frozen=True, slots=True)
class AttentionCase:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    sequences: tuple[CaseSequence, ...]
    page: int = 16
    padding: int = 0
    """Number of padding rows after each sequence."""
    deterministic: bool = False
    seed: int = 0

    def __str__(self) -> str:
        rows = " ".join(
            f"{sequence.start}+{sequence.count}"
            + ("" if sequence.grown is None else f" over {sequence.grown} nodes")
            for sequence in self.sequences
        )
        name = str(self.dtype).removeprefix("torch.")
        mode = ", fixed splits" if self.deterministic else ""
        return f"{self.num_heads}/{self.num_kv_heads} heads of {self.head_dim}, {name}, {rows}{mode}"


@dataclass(frozen=True, slots=True)
class LogitsCase:
    """Shape and kind of random logits to decide."""

    num_rows: int
    vocab_size: int
    truncates: bool = False
    head_tokens: bool = False
    """The columns are some tokens of a larger vocabulary, as for a draft with a restricted head."""
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def __str__(self) -> str:
        cut = ", truncated" if self.truncates else ""
        return f"{self.num_rows} rows of {self.vocab_size}{cut}{', of a head' if self.head_tokens else ''}"


@dataclass(frozen=True, slots=True)
class RowsCase:
    """Rows between a decoder's linears."""

    num_rows: int
    hidden_size: int
    intermediate_size: int
    dtype: torch.dtype
    seed: int = 0

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.num_rows} rows of {self.hidden_size} and {self.intermediate_size}, {name}"


KernelCase = AttentionCase | LogitsCase | RowsCase


def check_kernels(device: torch.device, cases: Iterable[KernelCase]) -> Iterator[KernelCheckResult]:
    """Compares each kernel with its torch form on each case."""
    for case in cases:
        if isinstance(case, AttentionCase):
            yield _checked("attention", case, _attention, device, BOUNDS[case.dtype])
            yield _checked("move", case, _move, device, 0.0)
        elif isinstance(case, RowsCase):
            yield _checked("norm", case, _norm, device, BOUNDS[case.dtype])
            yield _checked("silu", case, _silu, device, BOUNDS[case.dtype])
        else:
            yield _checked("decide", case, _decide, device, 0.0)
            yield _checked("floors", case, _floors, device, 0.0)
            yield _checked("children", case, _children, device, _SHARE_BOUND)


SCENES: tuple[KernelCase, ...] = (
    AttentionCase(
        8, 2, 64, torch.float32, (CaseSequence(0, 5), CaseSequence(37, 1), CaseSequence(300, 9)), padding=3
    ),
    AttentionCase(8, 1, 128, torch.float16, (CaseSequence(90, 17), CaseSequence(5, 1))),
    AttentionCase(
        4, 2, 64, torch.float32, (CaseSequence(40, 12, 30), CaseSequence(9, 3), CaseSequence(70, 5, 0))
    ),
    AttentionCase(4, 2, 128, torch.float16, (CaseSequence(600, 2), CaseSequence(33, 7, 60)), page=8),
    AttentionCase(
        4, 2, 64, torch.float16, (CaseSequence(1030, 3), CaseSequence(1020, 9)), deterministic=True
    ),
    LogitsCase(5, 2500),
    LogitsCase(4, 2049, truncates=True),
    LogitsCase(3, 1100, truncates=True, head_tokens=True),
    RowsCase(4, 576, 1536, torch.float32),
    RowsCase(3, 2304, 1100, torch.float16),
)


_Case = TypeVar("_Case", AttentionCase, LogitsCase, RowsCase)


def _checked(
    kernel: str,
    case: _Case,
    measure: Callable[[_Case, torch.device], float],
    device: torch.device,
    bound: float,
) -> KernelCheckResult:
    try:
        return KernelCheckResult(kernel, str(case), measure(case, device), bound)
    except Exception as error:  # Any error of compiler or driver means that the kernel cannot be used.
        return KernelCheckResult(
            kernel, str(case), _INFINITE, bound, f"{type(error).__name__}: {error}"[:300]
        )


def batch_and_pool(case: AttentionCase, device: torch.device) -> tuple[Batch, KVPool]:
    """The rows as a batch, and a pool that contains NaN in every slot that they do not see."""
    rng, generator = random.Random(case.seed), torch.Generator().manual_seed(case.seed)
    needed = [-(-(sequence.start + sequence.count) // case.page) for sequence in case.sequences]
    numbers = rng.sample(range(sum(needed) + 3), sum(needed))
    num_trees = len(case.sequences) if any(sequence.grown is not None for sequence in case.sequences) else 0
    shape = PoolShape(
        *(2, case.num_kv_heads, case.head_dim, sum(needed) + 3, case.page),
        # The torch form reads tree slots even if there is no tree.
        *(case.dtype, device, NODES_PER_TREE, num_trees),
    )
    pool = KVPool(shape)
    pool.keys.fill_(torch.nan)
    pool.values.fill_(torch.nan)
    rows, known = [], list[int]()
    for index, sequence in enumerate(case.sequences):
        blocks = [numbers.pop() for _ in range(needed[index])]
        known += [
            blocks[place // case.page] * case.page + place % case.page for place in range(sequence.start)
        ]
        branches = None
        if sequence.grown is not None:
            branches, grown = _tree(rng, sequence, shape.tree_start(index))
            known += grown
        rows.append(
            PlainInput([0] * sequence.count, sequence.start, blocks, 0, generated=True, branches=branches)
        )
    size = (2, case.num_kv_heads, len(known), case.head_dim)
    for tensor in (pool.keys, pool.values):
        tensor[:, :, known] = torch.randn(size, generator=generator).to(device, case.dtype)
    return BatchWriter(case.page, pool.scratch_slot).write(rows, _layout(case)), pool


def _layout(case: AttentionCase) -> Layout:
    firsts, end = [], 0
    for sequence in case.sequences:
        firsts.append(end)
        end += sequence.count + case.padding
    return Layout(tuple(firsts), end)


def _tree(rng: random.Random, sequence: CaseSequence, tree_start: int) -> tuple[Branches, list[int]]:
    """Rows with random parents in random tree slots; and the slots of existing nodes that rows see."""
    grown = sequence.grown or 0
    nodes = rng.sample(range(NODES_PER_TREE), grown + sequence.count)
    paths, depths = list[int](), list[int]()
    for number, node in enumerate(nodes):
        parent = rng.randint(-1, number - 1)
        paths.append(1 << node | (paths[parent] if parent >= 0 else 0))
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    positions = [sequence.start + depth for depth in depths[grown:]]
    # Nodes without descendants among the rows are not seen, and keep NaN.
    seen = 0
    for path in paths[grown:]:
        seen |= path
    seen_slots = [tree_start + node for node in nodes[:grown] if seen >> node & 1]
    return Branches(positions, sequence.start, tree_start, nodes[grown:], paths[grown:]), seen_slots


def _attention(case: AttentionCase, device: torch.device) -> float:
    batch, pool = batch_and_pool(case, device)
    generator = torch.Generator().manual_seed(case.seed + 1)
    sizes = [case.num_heads + case.num_kv_heads, case.num_kv_heads]
    projected = torch.randn(batch.num_rows, sum(sizes), case.head_dim, generator=generator)
    heads, values = torch.split(projected.to(device, case.dtype), sizes, dim=1)
    angles = 3.0 * torch.randn(batch.num_rows, 1, case.head_dim // 2, generator=generator).to(device)
    rotation, none = (
        Rotation(angles.cos(), angles.sin()),
        Rotation.none(batch.num_rows, case.head_dim, device),
    )
    exact = KVPool(replace(pool.shape, dtype=torch.float32))
    exact.keys.copy_(pool.keys)
    exact.values.copy_(pool.values)
    fused = FusedBackend(pool, case.num_heads, deterministic=case.deterministic)
    got = fused.plan(batch).attend(1, heads, values, rotation)
    moved = {name: getattr(batch, name).to(device) for name in _ON_DEVICE}
    plan = PagedBackend(exact).plan(replace(batch, **moved))
    # Rotated in the model's number format: the kernel must store the same bits.
    wanted = plan.attend(1, rotation.apply(heads).float(), values.float(), none)
    real = torch.cat([torch.arange(span.first, span.last) for span in batch.spans]).to(device)
    gaps = (got.float() - wanted)[real].abs()
    # Padding rows write to the scratch slot in any order; all other slots must be equal.
    is_stored = torch.ones(pool.shape.num_slots, dtype=torch.bool, device=device)
    is_stored[pool.scratch_slot] = False
    pairs = ((pool.keys, exact.keys), (pool.values, exact.values))
    alike = all(
        torch.equal(a[:, :, is_stored].float().nan_to_num(7e3), b[:, :, is_stored].nan_to_num(7e3))
        for a, b in pairs
    )
    return float(gaps.max()) if alike and bool(gaps.isfinite().all()) else _INFINITE


_ON_DEVICE = ("slots", "sequences", "seen", "paths", "tables", "tree_starts")


def _move(case: AttentionCase, device: torch.device) -> float:
    """Moves random slots to others, and padding."""
    _, pool = batch_and_pool(case, device)
    other = KVPool(pool.shape)
    for first, second in ((pool.keys, other.keys), (pool.values, other.values)):
        first.copy_(torch.randn(first.shape, generator=torch.Generator().manual_seed(case.seed)))
        second.copy_(first)
    # Without the scratch slot, which padding moves use: two moves to one slot have no order.
    real = [slot for slot in range(pool.shape.num_slots) if slot != pool.scratch_slot]
    slots = random.Random(case.seed).sample(real, 8)
    sources, destinations = [*slots[:4], pool.scratch_slot], [*slots[4:], pool.scratch_slot]
    moves = [torch.tensor(each, device=device) for each in (sources, destinations)]
    move_kv(pool.keys, pool.values, *moves)
    other.move(*moves)
    alike = torch.equal(pool.keys, other.keys) and torch.equal(pool.values, other.values)
    return 0.0 if alike else _INFINITE


def _norm(case: RowsCase, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(case.seed)
    size = (2, case.num_rows, case.hidden_size)
    # A row of zeros, and one whose squares a 16-bit format does not hold.
    scales = torch.tensor([1.0, 0.0, 300.0]).repeat(case.num_rows)[: case.num_rows, None]
    hidden, delta = (scales * torch.randn(size, generator=generator)).to(device, case.dtype)
    weight = (0.5 + torch.rand(case.hidden_size, generator=generator)).to(device, case.dtype)
    added, normed = rows.add_norm(hidden, delta, weight, 1e-5)
    if not torch.equal(added, hidden + delta):
        return _INFINITE
    return _relative_gap(normed, row_math.add_norm(hidden, delta, weight, 1e-5)[1])


def _silu(case: RowsCase, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(case.seed)
    gate_up = 3.0 * torch.randn(case.num_rows, 2 * case.intermediate_size, generator=generator)
    given = gate_up.to(device, case.dtype)
    return _relative_gap(rows.silu_mul(given), row_math.silu_mul(given))


def _relative_gap(found: Tensor, wanted: Tensor) -> float:
    gaps = (found.float() - wanted.float()).abs() / wanted.float().abs().clamp_min(1.0)
    return float(gaps.max()) if bool(gaps.isfinite().all()) else _INFINITE


def _logits(case: LogitsCase, device: torch.device) -> tuple[Tensor, Draws, Tensor | None]:
    generator = torch.Generator().manual_seed(case.seed)
    size = (case.num_rows, case.vocab_size)
    logits = (torch.randn(size, generator=generator) * 3).to(device, case.dtype)
    logits[:, 7::11] = -torch.inf
    seeds = torch.randint(-(2**63), 2**63 - 1, size[:1], generator=generator).to(device)
    positions = torch.randint(0, 2**32, size[:1], generator=generator).to(device)
    temperatures = torch.tensor([0.0, 0.7, 1.0, 1.3, 0.05]).repeat(case.num_rows)[: case.num_rows]
    truncation, floors = None, None
    if case.truncates:
        ones = torch.ones(case.num_rows, dtype=torch.float64, device=device)
        truncation = Truncation(-6.0 * ones, torch.full_like(seeds, 50), 0.9 * ones)
        divisors = torch.where(temperatures == 0.0, 1.0, temperatures).to(device)
        floors = whole_floors(scaled(logits, divisors), truncation)
    return logits, Draws(seeds, positions, temperatures.to(device), truncation), floors


def _decide(case: LogitsCase, device: torch.device) -> float:
    """The number of tokens that differ."""
    logits, draws, floors = _logits(case, device)
    return float((decide_rows(logits, draws, floors) != decide_whole(logits, draws)).sum())


def _floors(case: LogitsCase, device: torch.device) -> float:
    """The largest difference of floors, over rows that are truncated in several ways."""
    logits, draws, _ = _logits(case, device)
    largest = largest_values(logits, min(_CANDIDATES, case.vocab_size)).float()
    divisors, worst = torch.where(draws.temperatures == 0.0, 1.0, draws.temperatures), 0.0
    ones = torch.ones(case.num_rows, dtype=torch.float64, device=device)
    for log_min_p, top_k, top_p in _CUTS:
        truncation = Truncation(log_min_p * ones, torch.full_like(draws.seeds, top_k), top_p * ones)
        found = floors_of(logits, largest, draws.temperatures, truncation)
        wanted = candidate_floors(scaled(largest, divisors), scaled(logits, divisors), truncation)
        wanted = torch.where(draws.temperatures == 0.0, -torch.inf, wanted)
        gap = torch.where(found == wanted, 0.0, (found - wanted).abs())
        worst = max(worst, float(gap.max()))
    return worst


def _children(case: LogitsCase, device: torch.device) -> float:
    logits, draws, floors = _logits(case, device)
    # Every second row has the noise of vLLM's V2 runner.
    draws = replace(draws, is_murmur=torch.arange(case.num_rows, device=device) % 2 == 1)
    head_tokens = torch.arange(case.vocab_size, device=device) * 3 + 1 if case.head_tokens else None
    tokens, raws = children_of(logits, draws, floors, 4, head_tokens)
    wanted, shares = children_of_rows(logits, draws, floors, 4, head_tokens)
    if not torch.equal(tokens, wanted):
        return _INFINITE
    return float((raws.exp() - shares.exp()).abs().max())
