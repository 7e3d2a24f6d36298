"""Which nodes come first, by value and by the published fan-outs."""

import math

import numpy as np
import pytest

from ssd.draft.tree.select import GeometricFanOut, UniformFanOut
from tests.draft.tree.oracle.growth import NEVER, FanOutPolicy, ValuePolicy, growth_policy
from tests.draft.tree.oracle.tree import Tree


def graft(tree: Tree, parent: int, chances: list[float]) -> range:
    ids = range(tree.size, tree.size + len(chances))
    tree.graft(parent, ids, range(len(chances)), [math.log(chance) for chance in chances])
    return tree.children(parent)


def full_tree(depth: int, fan: int) -> Tree:
    """Every node has `fan` children; by index, level after level."""
    tree, level = Tree(0, 0), [0]
    for _ in range(depth):
        level = [
            child for node in level for child in graft(tree, node, [0.5**each for each in range(1, fan + 1)])
        ]
    return tree


def ranks(tree: Tree, node: int) -> tuple[int, ...]:
    """From the root to a node, which child each one is."""
    found = list[int]()
    while node != tree.root:
        parent = int(tree.parents[node])
        found.append(node - tree.children(parent).start)
        node = parent
    return tuple(reversed(found))


def by_priority(tree: Tree, priorities: np.ndarray) -> list[tuple[int, ...]]:
    order = np.argsort(-priorities, kind="stable")
    return [ranks(tree, int(node)) for node in order if priorities[node] > NEVER and node != tree.root]


def test_value_is_the_chance_of_the_whole_path() -> None:
    tree = Tree(0, 0)
    sure, unsure = graft(tree, 0, [0.75, 0.25])
    deep, rare = graft(tree, sure, [0.5, 0.125])
    graft(tree, unsure, [0.75])
    graft(tree, deep, [0.5])
    chances = np.exp(ValuePolicy().priorities(tree))
    assert chances == pytest.approx([1, 0.75, 0.25, 0.375, 0.09375, 0.1875, 0.1875])
    assert rare == 4


def test_value_prefers_depth_where_the_draft_is_sure_and_fan_out_where_not() -> None:
    sure = Tree(0, 0)
    first, second = graft(sure, 0, [0.9, 0.05])
    deep, _ = graft(sure, first, [0.9, 0.05])
    priorities = ValuePolicy().priorities(sure)
    assert priorities[deep] > priorities[second]
    unsure = Tree(0, 0)
    first, second = graft(unsure, 0, [0.45, 0.4])
    deep, _ = graft(unsure, first, [0.45, 0.4])
    priorities = ValuePolicy().priorities(unsure)
    assert priorities[second] > priorities[deep]


def test_value_counts_from_a_root_that_has_moved() -> None:
    tree = Tree(0, 0)
    first, _ = graft(tree, 0, [0.1, 0.05])
    child, _ = graft(tree, first, [0.75, 0.125])
    tree.move_root(first)
    assert np.exp(ValuePolicy().priorities(tree)[child]) == pytest.approx(0.75)


def test_uniform_leaves_the_likeliest_path_once_for_so_many_others() -> None:
    tree = full_tree(3, 4)
    eligible = set(by_priority(tree, FanOutPolicy(UniformFanOut(8)).priorities(tree)))
    # Two alternatives at every depth, each continued along its own likeliest tokens.
    expected = {(0,), (0, 0), (0, 0, 0)}
    for rank in (1, 2):
        expected |= {(rank,), (rank, 0), (rank, 0, 0), (0, rank), (0, rank, 0), (0, 0, rank)}
    assert eligible == expected


def test_geometric_prepares_fewer_the_later_the_rejection() -> None:
    fan = GeometricFanOut(16, acceptance=0.5, exponent=1.0, depth=4)
    assert [fan.at(k) for k in range(6)] == [6, 4, 3, 2, 0, 0]
    assert all(GeometricFanOut(width).at(k) >= 1 for width in (1, 12, 64) for k in range(8))
    tree = full_tree(3, 8)
    eligible = by_priority(tree, FanOutPolicy(GeometricFanOut(12, acceptance=0.3, depth=3)).priorities(tree))
    alternatives = [
        max(path[k] for path in eligible if path[:k] == (0,) * k and len(path) > k) for k in range(3)
    ]
    assert alternatives == [6, 4, 2] == sorted(alternatives, reverse=True)
    assert all(sum(rank > 0 for rank in path) <= 1 for path in eligible)


def test_fan_out_grows_the_likeliest_path_first_and_every_branch_by_one_token_a_step() -> None:
    tree = full_tree(3, 3)
    order = by_priority(tree, FanOutPolicy(UniformFanOut(4)).priorities(tree))
    assert order[:4] == [(0,), (1,), (0, 1), (0, 0, 1)]
    lengths = [len(path) - next((k for k, rank in enumerate(path) if rank), 0) for path in order]
    assert lengths == sorted(lengths)


def test_policies_by_name() -> None:
    assert isinstance(growth_policy("value", width=12), ValuePolicy)
    tree = full_tree(2, 4)
    for name in ("geometric", "uniform"):
        priorities = growth_policy(name, width=12).priorities(tree)
        assert priorities.shape == (tree.size,)
        assert np.isfinite(priorities).any()
        assert (priorities == NEVER).any()
