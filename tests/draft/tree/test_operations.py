"""A step on tensors is a fixed list of operations over storage that stays, so that it can be recorded."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import pytest
import torch
from torch import Tensor

from ssd.config import GrowthPolicyName
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.children import FixedChildren, SamplingNeeds
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.tables import Shape, TreeRows
from tests.draft.tree.operations import Operations

VOCAB, LOOKAHEAD = 2000, 8
PLAIN = Sampling(seed=3, end_ids=[7])
WARM = Sampling(seed=3, temperature=0.8, top_p=0.9, end_ids=[7])
MOST = {"select": 160, "greedy": 120, "sampled": 380, "apply": 160}
"""Operations, views not counted."""


class Recorded:
    """Three sequences, and steps whose operations are watched."""

    def __init__(self, sampling: Sampling, *, lookup: int = 0, policy: GrowthPolicyName = "value") -> None:
        shape = Shape(3, 16, rows=24, lookup=lookup, outcome=LOOKAHEAD + 1, first_tree_slot=3 * 256 * 16)
        self.forest = Forest(TorchArrays(), shape, policy)
        samples = sampling.temperature > 0
        self.children = FixedChildren(shape.children, SamplingNeeds(samples=samples, truncates=samples))
        for row in (1, 2):
            tokens = pack_ints([row, 2, 3])
            opening = Open(row, 1, tokens, 3, 3000, LOOKAHEAD, sampling)
            session = DraftSession(opening, max_len=3000, vocab_size=VOCAB, row=row)
            session.write_to(self.forest, num_computed=2)
            self.forest.tables.is_live[row] = True
            self.forest.tables.blocks[row] = torch.arange(256) + 256 * (row - 1)
        self._draw = torch.Generator().manual_seed(0)

    def logits(self) -> Tensor:
        return torch.randn(len(self.forest.rows.token), VOCAB, generator=self._draw) * 3

    def step(self, logits: Tensor) -> None:
        self.forest.select()
        if self.forest.shape.lookup:
            self.forest.lay_runs()
        self.forest.attach(self.children.of(logits, self.forest.tables, self.forest.rows))

    def outcomes(self) -> None:
        """Along the likeliest path of the first, nothing known of the second."""
        forest = self.forest
        forest.outcomes.count[1], forest.outcomes.count[2] = 1, 2
        forest.outcomes.tokens[1, 0] = forest.tables.child_token[1, forest.shape.root, 0]
        forest.outcomes.tokens[2, :2] = VOCAB - 1

    def places(self) -> dict[str, int]:
        """Where every table and buffer lies."""
        forest = self.forest
        found = {"fresh": forest.fresh, "count": forest.outcomes.count, "tokens": forest.outcomes.tokens}
        for name, group in (("tables", forest.tables), ("rows", forest.rows), ("moves", forest.moves)):
            found |= {f"{name}.{each.name}": getattr(group, each.name) for each in fields(group)}
        return {name: tensor.data_ptr() for name, tensor in found.items()}


def watched(action: Callable[[], object]) -> Operations:
    operations = Operations()
    with operations:
        action()
    return operations


@pytest.mark.parametrize("sampling", [PLAIN, WARM], ids=["greedy", "T=0.8 top_p=0.9"])
@pytest.mark.parametrize("lookup", [0, 4])
def test_no_step_reads_a_value_or_replaces_a_table(sampling: Sampling, lookup: int) -> None:
    recorded = Recorded(sampling, lookup=lookup)
    # What is made once is made before, and watched as well: who is not does Philox's rounds elsewhere.
    watched(partial(recorded.step, recorded.logits()))
    recorded.outcomes()
    recorded.forest.apply()
    places, counts = recorded.places(), set[tuple[int, int]]()
    for _ in range(3):
        step = watched(partial(recorded.step, recorded.logits()))
        recorded.outcomes()
        applied = watched(recorded.forest.apply)
        assert step.forbidden == []
        assert applied.forbidden == []
        counts.add((step.counts.total(), applied.counts.total()))
        assert recorded.places() == places
        assert step.written & set(places.values())
    assert len(counts) == 1, "the list of operations depends on values"


def test_fan_outs_need_no_value_either() -> None:
    recorded = Recorded(PLAIN, policy="geometric", lookup=2)
    recorded.step(recorded.logits())
    logits = recorded.logits()
    assert watched(lambda: recorded.step(logits)).forbidden == []


@pytest.mark.parametrize(("sampling", "most"), [(PLAIN, MOST["greedy"]), (WARM, MOST["sampled"])])
def test_operations_are_few(sampling: Sampling, most: int) -> None:
    recorded = Recorded(sampling)
    recorded.step(recorded.logits())
    assert watched(recorded.forest.select).counts.total() <= MOST["select"]
    logits, forest = recorded.logits(), recorded.forest

    def attach() -> None:
        forest.attach(recorded.children.of(logits, forest.tables, forest.rows))

    assert watched(attach).counts.total() <= most
    recorded.outcomes()
    assert watched(forest.apply).counts.total() <= MOST["apply"]


def test_the_watch_sees_what_it_is_to_see() -> None:
    table, flags = torch.arange(8), torch.tensor([True] * 8)
    for action in (
        lambda: table.sum().item(),
        lambda: table[flags],
        lambda: table.nonzero(),
        lambda: torch.tensor([1, 2]),
        lambda: table.__setitem__(flags, 1),
    ):
        assert watched(action).forbidden, action


def test_padding_writes_to_scratch_only() -> None:
    recorded = Recorded(PLAIN)
    forest = recorded.forest
    recorded.step(recorded.logits())
    assert (forest.tables.child_token[1:3, forest.shape.root] >= 0).all()
    forest.tables.is_live[:] = False
    before = {each.name: getattr(forest.tables, each.name).clone() for each in fields(forest.tables)}
    recorded.step(recorded.logits())
    assert not forest.rows.sequence.any()
    for name, table in before.items():
        now = getattr(forest.tables, name)
        if name == "counts":
            assert torch.equal(now, table)
        else:
            axis = 1 if name in ("ancestors", "parted") else 0
            assert torch.equal(now.narrow(axis, 1, 3), table.narrow(axis, 1, 3)), name
    assert (forest.rows.target < forest.shape.first_tree_slot + forest.shape.slots).all()


def test_a_row_of_nothing_but_nan_has_no_children() -> None:
    recorded = Recorded(WARM)
    recorded.step(torch.full((len(recorded.forest.rows.token), VOCAB), torch.nan))
    assert not (recorded.forest.fresh[:, 1] > 0).any()
    assert isinstance(recorded.forest.rows, TreeRows)
