"""The check of kernels at startup: each against its torch form, on scenes of the model's own shapes.

Kernels that fail are left to torch in this process. Every slot that no row may see holds NaN, so what reads
too much shows at once. The torch form computes in float32. Knows the kernels of a model; those of a draft's
trees are in `draft/server/kernel_checks.py`. The self-test checks more scenes.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from ssd.attention.batch import Batch, BatchWriter
from ssd.attention.fused import FusedBackend
from ssd.attention.inputs import Branches, Layout, PlainInput
from ssd.attention.paged import PagedBackend
from ssd.kernels.decide import decide_rows
from ssd.kernels.kv import move_kv
from ssd.kernels.language import can_launch
from ssd.kernels.tiles import can_attend
from ssd.kernels.trust import Kernel, leave_to_torch, may_run
from ssd.kernels.vocabulary import children_of
from ssd.kvcache.pool import NODES_PER_TREE, KVPool, PoolShape
from ssd.sampling import Draws, Truncation
from ssd.sampling.noise import noise_of_tokens
from ssd.sampling.truncation import whole_floors
from ssd.sampling.whole import decide_whole, scaled

logger = logging.getLogger(__name__)

BOUNDS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}
"""How far attention may be from its torch form in float32: its inputs are of order 1."""
_SHARE_BOUND = 2e-5
_INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class KernelCheckResult:
    kernel: Kernel
    case: str
    worst: float
    bound: float
    error: str = ""
    """What was raised instead of a result."""

    @property
    def is_sound(self) -> bool:
        return self.worst <= self.bound

    @property
    def description(self) -> str:
        if self.error:
            return self.error
        return f"differs by {self.worst:.1e}, at most {self.bound:.0e} is rounding"


@dataclass(frozen=True, slots=True)
class CaseSequence:
    """One sequence of a scene: `count` rows behind `start` keys of its text."""

    start: int
    count: int
    grown: int | None = None
    """Nodes of its tree that are there before; None: the rows are of the text itself."""


@dataclass(frozen=True, slots=True)
class AttentionCase:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    sequences: tuple[CaseSequence, ...]
    page: int = 16
    padding: int = 0
    """Rows of nobody, behind each sequence's."""
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
    """Logits of a vocabulary, and how they are decided."""

    num_rows: int
    vocab_size: int
    truncates: bool = False
    head_tokens: bool = False
    """A draft's: columns stand for some tokens of a larger vocabulary."""
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def __str__(self) -> str:
        cut = ", truncated" if self.truncates else ""
        return f"{self.num_rows} rows of {self.vocab_size}{cut}{', of a head' if self.head_tokens else ''}"


def check_model(shape: PoolShape, num_heads: int, vocab_size: int, *, deterministic: bool) -> None:
    """Before a model's first step: leaves kernels that fail on its shapes to torch."""
    if can_launch(shape.device):
        cases = cases_of(shape, num_heads, vocab_size, deterministic=deterministic)
        leave_failing_kernels_to_torch(shape.device, check_kernels(shape.device, cases))


def check_kernels(
    device: torch.device, cases: Iterable[AttentionCase | LogitsCase]
) -> Iterator[KernelCheckResult]:
    """What each kernel gives on each scene, beside its oracle."""
    for case in cases:
        if isinstance(case, AttentionCase):
            yield _found("attention", case, _attention, device, BOUNDS[case.dtype])
            yield _found("move", case, _move, device, 0.0)
        else:
            yield _found("decide", case, _decide, device, 0.0)
            yield _found("children", case, _children, device, _SHARE_BOUND)


def leave_failing_kernels_to_torch(
    device: torch.device, findings: Iterable[KernelCheckResult]
) -> frozenset[Kernel]:
    """Those that fail, each with a warning in the log."""
    failed: dict[Kernel, KernelCheckResult] = {}
    for each in findings:
        if not each.is_sound and may_run(each.kernel, device):
            leave_to_torch(each.kernel, device)
            failed[each.kernel] = each
            logger.warning(
                "kernel %s is replaced by its torch form on %s: %s (%s)",
                *(each.kernel, device, each.description, each.case),
            )
    return frozenset(failed)


def cases_of(
    shape: PoolShape, num_heads: int, vocab_size: int, *, deterministic: bool
) -> tuple[AttentionCase | LogitsCase, ...]:
    """A model's own: its heads, pages, number format and vocabulary, a text that is verified and a tree."""
    heads = (num_heads, shape.num_kv_heads, shape.head_dim, shape.dtype)
    texts = (CaseSequence(300, 9), CaseSequence(0, 5), CaseSequence(70, 1))
    sequences = (*texts, CaseSequence(40, 12, 30)) if shape.num_trees and not deterministic else texts
    case = (LogitsCase(4, vocab_size), LogitsCase(3, vocab_size, truncates=True))
    if not can_attend(num_heads, shape.num_kv_heads, shape.head_dim):
        return case
    return AttentionCase(*heads, sequences, page=shape.block_size, deterministic=deterministic), *case


_Case = TypeVar("_Case", AttentionCase, LogitsCase)


def _found(
    kernel: Kernel,
    case: _Case,
    measure: Callable[[_Case, torch.device], float],
    device: torch.device,
    bound: float,
) -> KernelCheckResult:
    try:
        return KernelCheckResult(kernel, str(case), measure(case, device), bound)
    except Exception as error:  # A compiler's, a driver's: whatever it is, the kernel cannot be used.
        return KernelCheckResult(
            kernel, str(case), _INFINITE, bound, f"{type(error).__name__}: {error}"[:300]
        )


# Scenes.


def batch_and_pool(case: AttentionCase, device: torch.device) -> tuple[Batch, KVPool]:
    """The rows as a batch, and a pool where every slot that is not theirs to see holds NaN."""
    rng, generator = random.Random(case.seed), torch.Generator().manual_seed(case.seed)
    needed = [-(-(sequence.start + sequence.count) // case.page) for sequence in case.sequences]
    numbers = rng.sample(range(sum(needed) + 3), sum(needed))
    num_trees = len(case.sequences) if any(sequence.grown is not None for sequence in case.sequences) else 0
    shape = PoolShape(
        *(2, case.num_kv_heads, case.head_dim, sum(needed) + 3, case.page),
        # The torch form reads tree slots even where there is no tree.
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
    """Rows whose parents are any nodes before them, in any places; and the slots of nodes that are there."""
    grown = sequence.grown or 0
    places = rng.sample(range(NODES_PER_TREE), grown + sequence.count)
    paths, depths = list[int](), list[int]()
    for number, place in enumerate(places):
        parent = rng.randint(-1, number - 1)
        paths.append(1 << place | (paths[parent] if parent >= 0 else 0))
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    positions = [sequence.start + depth for depth in depths[grown:]]
    # A node that no row descends from is nobody's to see.
    seen = 0
    for path in paths[grown:]:
        seen |= path
    mine = [tree_start + place for place in places[:grown] if seen >> place & 1]
    return Branches(positions, sequence.start, tree_start, places[grown:], paths[grown:]), mine


def _attention(case: AttentionCase, device: torch.device) -> float:
    batch, pool = batch_and_pool(case, device)
    generator = torch.Generator().manual_seed(case.seed + 1)
    heads = case.num_heads + 2 * case.num_kv_heads
    projected = torch.randn(batch.num_rows, heads, case.head_dim, generator=generator)
    sizes = [case.num_heads, case.num_kv_heads, case.num_kv_heads]
    exact = KVPool(replace(pool.shape, dtype=torch.float32))
    exact.keys.copy_(pool.keys)
    exact.values.copy_(pool.values)
    fused = FusedBackend(pool, case.num_heads, deterministic=case.deterministic)
    mine = projected.to(device, case.dtype)
    got = fused.plan(batch).attend(1, *torch.split(mine, sizes, dim=1))
    moved = {name: getattr(batch, name).to(device) for name in _ON_DEVICE}
    wanted = (
        PagedBackend(exact).plan(replace(batch, **moved)).attend(1, *torch.split(mine.float(), sizes, dim=1))
    )
    rows = torch.cat([torch.arange(span.first, span.last) for span in batch.spans]).to(device)
    gaps = (got.float() - wanted)[rows].abs()
    # Padding writes to scratch in any order; elsewhere both must have stored the same.
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
    """Any slots to any others, and padding."""
    _, pool = batch_and_pool(case, device)
    other = KVPool(pool.shape)
    for mine, its in ((pool.keys, other.keys), (pool.values, other.values)):
        mine.copy_(torch.randn(mine.shape, generator=torch.Generator().manual_seed(case.seed)))
        its.copy_(mine)
    # Scratch is padding's: two moves to one slot have no order.
    real = [slot for slot in range(pool.shape.num_slots) if slot != pool.scratch_slot]
    slots = random.Random(case.seed).sample(real, 8)
    sources, destinations = [*slots[:4], pool.scratch_slot], [*slots[4:], pool.scratch_slot]
    taken, given = (torch.tensor(each, device=device) for each in (sources, destinations))
    move_kv(pool.keys, pool.values, taken, given)
    other.move(taken, given)
    alike = torch.equal(pool.keys, other.keys) and torch.equal(pool.values, other.values)
    return 0.0 if alike else _INFINITE


# Vocabularies.


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
    """How many tokens differ."""
    logits, draws, floors = _logits(case, device)
    return float((decide_rows(logits, draws, floors) != decide_whole(logits, draws)).sum())


def _children(case: LogitsCase, device: torch.device) -> float:
    logits, draws, floors = _logits(case, device)
    head_tokens = torch.arange(case.vocab_size, device=device) * 3 + 1 if case.head_tokens else None
    tokens, raws = children_of(logits, draws, floors, 4, head_tokens)
    wanted, shares = _children_of_rows(logits, draws, floors, 4, head_tokens)
    if not torch.equal(tokens, wanted):
        return _INFINITE
    return float((raws.exp() - shares.exp()).abs().max())


def _children_of_rows(
    logits: Tensor, draws: Draws, floors: Tensor | None, count: int, head_tokens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The torch form of `children_of`: of equal scores the lower column comes first."""
    num_rows, num_columns = logits.shape
    device = logits.device
    ids = torch.arange(num_columns, device=device) if head_tokens is None else head_tokens
    owners = torch.arange(num_rows, device=device).repeat_interleave(num_columns)
    noise = noise_of_tokens(draws.seeds, draws.positions, owners, ids.repeat(num_rows)).view(logits.shape)
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
