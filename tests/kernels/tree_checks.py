"""Compares a forest's kernels with torch: each step of random trees is done by a kernel and by torch.

Both start from the same state and must give the same result. Children are random, from a vocabulary so small
that runs are confirmed, hits happen and tokens end texts; some log-probabilities are NaN, and some tokens are
beyond the engine's vocabulary. Scratch rows may differ and are not compared.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.children import ChosenChildren
from ssd.draft.tree.device_edits import DeviceEdits, TokenRules
from ssd.draft.tree.device_news import NewBlocks, NewsWriter
from ssd.draft.tree.device_runs import RecentText, RunFinder, empty_paths
from ssd.draft.tree.forest import HEAD, Forest, RunRows, TokenRun
from ssd.draft.tree.gpu import STEPS, FusedForest
from ssd.draft.tree.gpu_rows import FusedEdits, FusedNewsWriter, FusedRunFinder
from ssd.draft.tree.tables import OutcomeTable, Shape
from tests.kernels.model_checks import KernelCheckResult

BOUND = 2e-6
"""Largest difference of log-probabilities in float32. Integers must be equal."""
CHECKED = ("select", "runs", "edits", "attach", "news", "apply")
_MAX_LEN = 400
_COLUMNS = 1100
"""More than a block of a vocabulary."""
_LATER = (0, 300, 5000)
"""Texts that are longer by this many tokens: at the last, the recent ones have gone round."""
_END, _UNKNOWN = 3, 11
"""A token that ends texts, and the first token beyond the engine's vocabulary."""
_INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class ForestScene:
    """Some rounds with trees of this shape. The last sequence stays empty."""

    shape: Shape
    count: int = 4
    """Rounds."""
    crowd: int = 0
    """Slots that dead nodes take at first, so that others use the second word of bits."""
    seed: int = 0

    def __str__(self) -> str:
        shape = self.shape
        runs = f", runs of {shape.lookup}" if shape.lookup else ""
        return f"{shape.sequences} trees of {shape.slots}, {shape.width} rows of {shape.children}{runs}"


ROUNDS = (
    ForestScene(
        Shape(
            3,
            4,
            rows=5,
            lookup=3,
            slots=12,
            children=3,
            outcome=4,
            ring=8,
            ends=2,
            blocks=32,
            first_tree_slot=999,
        ),
        seed=10,
    ),
    ForestScene(
        Shape(3, 5, slots=80, children=2, outcome=4, ring=8, ends=2, blocks=32, first_tree_slot=4096),
        count=6,
        crowd=62,
        seed=30,
    ),
)


def check_steps(device: torch.device, scenes: Iterable[ForestScene]) -> Iterator[KernelCheckResult]:
    for scene in scenes:
        worst, trouble = dict.fromkeys(CHECKED, 0.0), dict[str, str]()
        for step, measure in _steps(scene, device):
            if step in trouble:
                continue
            try:
                worst[step] = max(worst[step], measure())
            except Exception as error:  # From the compiler or the driver: the kernel cannot be used.
                worst[step], trouble[step] = _INFINITE, f"{type(error).__name__}: {error}"[:300]
        for step in CHECKED:
            yield KernelCheckResult(step, str(scene), worst[step], BOUND, trouble.get(step, ""))


def _steps(scene: ForestScene, device: torch.device) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yields each step after torch has done it, with a function that repeats it by a kernel and compares."""
    shape, xp = scene.shape, TorchArrays(device)
    forest, other = Forest(xp, shape), FusedForest(xp, shape, kernels=frozenset(STEPS))
    rng, draw = random.Random(scene.seed), torch.Generator().manual_seed(scene.seed)
    for row in range(1, shape.sequences):
        _open_session(forest, row, rng)
        forest.tables.is_used[row, : scene.crowd] = True
        forest.tables.position[row, : scene.crowd] = _MAX_LEN
    for number in range(scene.count):
        forest.tables.is_live[1 : shape.sequences] = True
        _set_usage(forest, rng)
        _copy(forest, other)
        forest.select()
        yield "select", partial(_select_gap, forest, other)
        for late in _LATER:
            yield "runs", partial(_found_gap, forest, draw, late)
        if shape.lookup:
            forest.load_runs(_runs(forest, rng))
            _copy(forest, other)
            forest.lay_runs()
            yield "attach", partial(_run_gap, forest, other)
        for has_head in (False, True):
            yield "edits", partial(_edit_gap, forest, draw, rng, has_head=has_head)
        children = _random_children(shape, draw, device)
        _copy(forest, other)
        forest.attach(children)
        yield "attach", partial(_attach_gap, forest, other, children)
        if number % 2:
            _load_outcomes(forest, rng)
            for has_head in (False, True):
                yield "news", partial(_news_gap, forest, draw, rng, has_head=has_head)
            _copy(forest, other)
            forest.apply()
            yield "apply", partial(_apply_gap, forest, other)


def _open_session(forest: Forest, row: int, rng: random.Random) -> None:
    tokens = [rng.randrange(_UNKNOWN) for _ in range(rng.randint(2, 7))]
    sampling = Sampling(seed=row, temperature=0.5 * (row % 2), end_ids=[_END])
    opening = Open(row, 1, pack_ints(tokens), len(tokens), _MAX_LEN, forest.shape.outcome - 1, sampling)
    session = DraftSession(opening, max_len=_MAX_LEN, vocab_size=_UNKNOWN, row=row)
    session.write_to(forest, num_computed=max(0, len(tokens) - 3), calibration_part=row % 2)
    blocks = rng.sample(range(1000), forest.shape.blocks)
    forest.tables.blocks[row] = torch.tensor(blocks, device=forest.tables.blocks.device)


def _set_usage(forest: Forest, rng: random.Random) -> None:
    """Two tenants with equal or different usage and weights, and trees with some steps left."""
    usage, sequences = forest.usage, forest.shape.sequences
    for row in range(1, sequences):
        usage.tenant[row] = rng.randint(1, 2)
        forest.tables.steps_left[row] = rng.choice([1, 1, 3])
    for tenant in (1, 2):
        usage.used[tenant], usage.weight[tenant] = rng.choice([0.0, 0.0, 2.5]), rng.choice([1.0, 1.0, 3.0])


def _random_children(shape: Shape, draw: torch.Generator, device: torch.device) -> ChosenChildren:
    """Random children of every row, most likely first."""
    num_rows = shape.num_rows + shape.lookup
    tokens = torch.rand(num_rows, _UNKNOWN + 2, generator=draw).argsort(1)[:, : shape.children]
    raws = (torch.rand(num_rows, shape.children, generator=draw) ** 3).log().sort(1, descending=True).values
    raws[torch.rand(raws.shape, generator=draw) < 0.1] = -torch.inf
    raws[torch.rand(raws.shape, generator=draw) < 0.05] = torch.nan
    return tokens.to(device), raws.to(device)


def _runs(forest: Forest, rng: random.Random) -> list[TokenRun]:
    """Runs from the first row of some trees, while slots are free."""
    rows, shape, to_host = forest.rows, forest.shape, forest.xp.to_host
    sequence, attaches, start = to_host(rows.sequence), to_host(rows.attaches), to_host(rows.start)
    is_used, left, found = to_host(forest.tables.is_used), shape.lookup, list[TokenRun]()
    for row in range(shape.num_rows):
        mine = int(sequence[row])
        if not attaches[row] or not (start[row] == row or to_host(rows.is_read)[row]) or rng.random() < 0.2:
            continue
        taken = int((sequence[: shape.num_rows] == mine).sum() + is_used[mine, : shape.slots].sum())
        length = min(left, rng.randint(1, 3), shape.slots - taken)
        if length > 0:
            found.append(TokenRun(row, [rng.randrange(_UNKNOWN) for _ in range(length)]))
            left -= length
    return found


def _load_outcomes(forest: Forest, rng: random.Random) -> None:
    """Random outcomes for most trees: along nodes, up to a child, or to an unexpected token."""
    tables, shape, to_host = forest.tables, forest.shape, forest.xp.to_host
    used, node_id, first_id = (to_host(each) for each in (tables.is_used, tables.node_id, tables.first_id))
    children = to_host(tables.child_token)
    for row in range(1, shape.sequences):
        family, tokens = shape.root, list[int]()
        while used[row, family] and len(tokens) < shape.outcome and rng.random() < 0.8:
            known = [rank for rank in range(shape.children) if children[row, family, rank] >= 0]
            if not known:
                break
            nodes = {int(node_id[row, slot]): slot for slot in range(shape.slots) if used[row, slot]}
            grown = [rank for rank in known if int(first_id[row, family]) + rank in nodes]
            rank = rng.choice(grown if grown and rng.random() < 0.8 else known)
            tokens.append(int(children[row, family, rank]))
            if rank not in grown:
                break
            family = nodes[int(first_id[row, family]) + rank]
        if rng.random() < 0.25 and len(tokens) < shape.outcome:
            tokens.append(_UNKNOWN + 5)
        forest.outcomes.count[row] = len(tokens)
        for place, token in enumerate(tokens):
            forest.outcomes.tokens[row, place] = token


def _copy(forest: Forest, other: Forest) -> None:
    for name in ("tables", "rows", "runs", "outcomes", "usage"):
        mine, its = getattr(forest, name), getattr(other, name)
        for each in fields(mine):
            getattr(its, each.name).copy_(getattr(mine, each.name))
    other._free.copy_(forest._free)


def _select_gap(forest: Forest, other: Forest) -> float:
    other.select()
    gaps = [_gap(forest._free, other._free), _gap(forest.usage.wanted, other.usage.wanted)]
    for each in fields(forest.rows):
        mine, its = getattr(forest.rows, each.name), getattr(other.rows, each.name)
        gaps.append(_gap(mine[..., : forest.shape.num_rows], its[..., : forest.shape.num_rows]))
    return max(gaps)


def _found_gap(forest: Forest, draw: torch.Generator, late: int) -> float:
    """Of paths and runs, at positions that are later by `late`."""
    tables, shape, device = forest.tables, forest.shape, forest.tables.length.device
    columns = "length", "position", "last_position"
    moved = replace(tables, **{name: getattr(tables, name) + late for name in columns})
    rows = forest.rows.part(0, shape.num_rows)
    rows = replace(rows, position=rows.position + late)
    recent = RecentText.of(shape, device)
    tokens = torch.randint(_UNKNOWN + 2, recent.tokens.shape, generator=draw)
    # Every second text has two tokens: it repeats itself after one or two.
    tokens[::2] %= 2
    recent.tokens.copy_(tokens)
    found = list[tuple[RunRows, Tensor]]()
    for finder in (RunFinder(shape, device), FusedRunFinder(shape, device)):
        runs, paths = RunRows.of(forest.xp, shape.lookup), empty_paths(shape, len(forest.rows.token), device)
        finder.find(moved, rows, recent, runs, paths)
        found.append((runs, paths[:, :-1]))
    (runs, paths), (its_runs, its_paths) = found
    is_row = torch.cat((rows.sequence > 0, runs.owner >= 0))
    gaps = [_gap(getattr(runs, each.name), getattr(its_runs, each.name)) for each in fields(runs)]
    return max(*gaps, _gap(paths[is_row], its_paths[is_row]))


def _edit_gap(forest: Forest, draw: torch.Generator, rng: random.Random, *, has_head: bool) -> float:
    """Of random logits, edited by random rules: all but the first session have some."""
    tables, rows, shape, device = forest.tables, forest.rows, forest.shape, forest.tables.length.device
    rules = {row: _random_rules(rng) for row in range(2, shape.sequences)}
    mine, its = (_edits(kind, shape, device, rules, has_head=has_head) for kind in (DeviceEdits, FusedEdits))
    num_columns = mine.seen.shape[1] - 1
    recent, paths = RecentText.of(shape, device), empty_paths(shape, len(rows.token), device)
    recent.tokens.copy_(torch.randint(_UNKNOWN, recent.tokens.shape, generator=draw))
    # Not the forest's own runs: their rows are laid already.
    runs = RunRows.of(forest.xp, shape.lookup)
    RunFinder(shape, device).find(tables, rows.part(0, shape.num_rows), recent, runs, paths)
    logits = 3 * torch.randn(len(rows.token), num_columns, generator=draw).to(device)
    found = [logits, logits.clone()]
    for edits, each in zip((mine, its), found, strict=True):
        edits.apply(each, tables, rows, paths, recent)
    return _gap(*(each[rows.attaches] for each in found))


def _edits(
    kind: type[DeviceEdits],
    shape: Shape,
    device: torch.device,
    rules: Mapping[int, TokenRules],
    *,
    has_head: bool,
) -> DeviceEdits:
    """Edits with these rules, by row."""
    head = torch.arange(_UNKNOWN, device=device) * 2 + 1 if has_head else None
    edits = kind(shape, _COLUMNS if head is None else len(head), head, device)
    for row, each in rules.items():
        edits.enter(row, each)
    return edits


def _random_rules(rng: random.Random) -> TokenRules:
    def tokens(count: int) -> list[int]:
        return [rng.randrange(_UNKNOWN) for _ in range(count)]

    return TokenRules(
        np.array(tokens(6)),
        np.array(tokens(9)),
        (rng.choice([0.8, 1.0, 1.3]), rng.choice([0.0, 0.7]), rng.choice([0.0, -0.3])),
        [(token, rng.choice([-_INFINITE, 2.5, -1.0])) for token in set(tokens(4))],
        [tokens(count) for count in (1, 2, 2, 2, 3)],
        rng.choice([0, 400]),
    )


def _news_gap(forest: Forest, draw: torch.Generator, rng: random.Random, *, has_head: bool) -> float:
    """Of random new blocks and outcomes of few tokens. All but the first session have edits."""
    shape, device = forest.shape, forest.tables.length.device
    rules = {row: _random_rules(rng) for row in range(2, shape.sequences)}
    tokens = torch.randint(_UNKNOWN, RecentText.of(shape, device).tokens.shape, generator=draw)
    size = (shape.sequences + 1,)
    number = torch.randint(3, size, generator=draw)
    number[0] = 0
    first = torch.randint(shape.blocks - 2, size, generator=draw)
    blocks = torch.randint(1000, (*size, 2), generator=draw)
    count = torch.randint(shape.outcome + 1, size, generator=draw)
    said = torch.randint(3, (*size, shape.outcome), generator=draw)
    outcomes = OutcomeTable(count.to(device), said.to(device))
    new = NewBlocks(first.to(device), number.to(device), blocks.to(device))
    found = list[tuple[Tensor, ...]]()
    for kind in (NewsWriter, FusedNewsWriter):
        recent, edits = (
            RecentText(tokens.to(device, copy=True)),
            _edits(DeviceEdits, shape, device, rules, has_head=has_head),
        )
        tables = replace(forest.tables, blocks=forest.tables.blocks.clone())
        kind(recent, edits).write(tables, outcomes, new)
        edited = edits.seen[2 : shape.sequences, :-1]
        found.append((recent.tokens[:, :-1], edited, tables.blocks[1:]))
    return max(_gap(*pair) for pair in zip(*found, strict=True))


def _run_gap(forest: Forest, other: Forest) -> float:
    other.lay_runs()
    is_run = forest.runs.owner >= 0
    start, gaps = forest.shape.num_rows, list[float]()
    for each in fields(forest.rows):
        mine, its = getattr(forest.rows, each.name), getattr(other.rows, each.name)
        gaps.append(_gap(mine[..., start:][..., is_run], its[..., start:][..., is_run]))
    return max(gaps)


def _attach_gap(forest: Forest, other: Forest, children: ChosenChildren) -> float:
    other.attach(children)
    mine, its = forest.fresh, other.fresh
    has_children, real = mine[:, 1] > 0, HEAD + forest.shape.children
    is_child = mine[has_children, HEAD:real] >= 0
    reals = [each[has_children, real:].view(torch.float32)[is_child] for each in (mine, its)]
    whole = _gap(mine[has_children, :real], its[has_children, :real]), _gap(mine[:, 1], its[:, 1])
    return max(*whole, _gap(*reals), _tables_gap(forest, other))


def _apply_gap(forest: Forest, other: Forest) -> float:
    other.apply()
    session = slice(1, forest.shape.sequences)
    moves = (
        (getattr(each.moves, name)[session] for each in (forest, other)) for name in ("sources", "targets")
    )
    count = _gap(forest.outcomes.count, other.outcomes.count)
    return max(*(_gap(*pair) for pair in moves), count, _tables_gap(forest, other))


def _tables_gap(forest: Forest, other: Forest) -> float:
    exists = forest.tables.child_token >= 0
    gaps = list[float]()
    for each in fields(forest.tables):
        mine, its = getattr(forest.tables, each.name), getattr(other.tables, each.name)
        if each.name == "child_value":
            # Values of missing children are undefined.
            mine, its = (torch.where(exists, table, 0.0) for table in (mine, its))
        if each.name != "counts":
            axis = 1 if each.name in ("ancestors", "parted") else 0
            mine, its = (table.narrow(axis, 1, forest.shape.sequences - 1) for table in (mine, its))
        gaps.append(_gap(mine, its))
    return max(gaps)


def _gap(mine: Tensor, its: Tensor) -> float:
    """The largest difference; infinite if integers differ."""
    if not mine.is_floating_point():
        return 0.0 if torch.equal(mine, its) else _INFINITE
    apart = (mine - its).abs()
    apart = torch.where((mine == its) | (mine.isnan() & its.isnan()), 0.0, apart)
    return float(apart.nan_to_num(_INFINITE).max()) if apart.numel() else 0.0
