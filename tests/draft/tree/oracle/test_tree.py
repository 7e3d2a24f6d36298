"""The rolling tree equals a naive one made of linked nodes, whatever is done to both."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.draft.tree.oracle.tree import UNGROWN, UNNAMED, Tree

VOCAB = 9


def grafted(tree: Tree, parent: int, first_id: int, *tokens: int) -> None:
    """Children with log-probabilities −1, −2, …"""
    logprobs = [-float(rank) for rank in range(1, len(tokens) + 1)]
    tree.graft(parent, range(first_id, first_id + len(tokens)), tokens, logprobs)
    tree.check_integrity()


def small_tree() -> Tree:
    """root 10 → 11, 12, 13;  11 → 14, 15;  12 → 16, 17;  14 → 18."""
    tree = Tree(10, 5)
    grafted(tree, 0, 11, 1, 2, 3)
    grafted(tree, 1, 14, 1, 2)
    grafted(tree, 2, 16, 7, 8)
    grafted(tree, 4, 18, 4)
    return tree


def test_walk_goes_as_far_as_the_tokens_are_known() -> None:
    tree = small_tree()
    assert tree.walk([1, 1, 4]) == [1, 4, 8]
    assert tree.walk([1, 1, 4, 4]) == [1, 4, 8]
    assert tree.walk([2, 8, 1]) == [2, 7]
    assert tree.walk([4]) == []
    assert tree.walk([]) == []


def test_best_path_follows_first_children_and_stops_at_the_limit() -> None:
    tree = small_tree()
    assert tree.best_path(9) == [1, 4, 8]
    assert tree.best_path(2) == [1, 4]
    assert tree.best_path(0) == []
    tree.move_root(8)
    assert tree.best_path(9) == []


def test_values_are_sums_along_the_path_and_relative_to_the_root() -> None:
    tree = small_tree()
    assert tree.relative_values()[[0, 3, 4, 7, 8]].tolist() == [0.0, -3.0, -2.0, -4.0, -3.0]
    tree.move_root(2)
    assert tree.relative_values()[[2, 6, 7]].tolist() == [0.0, -1.0, -2.0]
    assert tree.relative_depths()[[2, 6, 7]].tolist() == [0, 1, 1]


def test_ancestors_lie_between_the_root_and_the_node_nearest_first() -> None:
    tree = small_tree()
    assert tree.ancestors(8) == [4, 1]
    assert tree.ancestors(1) == []
    tree.move_root(1)
    assert tree.ancestors(8) == [4]


def test_compact_keeps_what_is_below_the_root_in_its_order() -> None:
    tree = small_tree()
    tree.move_root(1)
    assert tree.compact() == [1, 4, 5, 8]
    tree.check_integrity()
    assert (tree.size, tree.root, tree.root_id) == (4, 0, 11)
    assert tree.ids[:4] == [11, 14, 15, 18]
    assert tree.parents[:4] == [0, 0, 0, 1]
    assert list(tree.children(0)) == [1, 2]
    assert tree.values[:4] == [0.0, -1.0, -2.0, -2.0]


def test_a_node_gets_its_children_once_and_each_token_once() -> None:
    tree = small_tree()
    with pytest.raises(ValueError, match="already has its children"):
        grafted(tree, 0, 30, 6)
    with pytest.raises(ValueError, match="twice"):
        grafted(tree, 3, 30, 6, 6)
    tree.check_integrity()
    assert tree.size == 9


def test_replant_forgets_everything_but_the_new_root() -> None:
    tree = small_tree()
    tree.move_root(4)
    tree.replant(40, 3)
    tree.check_integrity()
    assert (tree.size, tree.root, tree.root_id, int(tree.tokens[0])) == (1, 0, 40, 3)
    assert tree.best_path(3) == []
    assert tree.relative_values().tolist() == [0.0]
    grafted(tree, 0, 41, 1)
    assert tree.relative_depths().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("column", "node", "value"),
    [
        ("parents", 5, 2),
        ("depths", 4, 5),
        ("first_children", 1, 0),
        ("num_children", 8, 1),
        ("tokens", 2, 1),
        ("ids", 2, 11),
    ],
)
def test_check_integrity_sees_a_broken_column(column: str, node: int, value: int) -> None:
    tree = small_tree()
    getattr(tree, column)[node] = value
    with pytest.raises(RuntimeError):
        tree.check_integrity()


def test_columns_grow_beyond_their_first_capacity() -> None:
    tree = Tree(0, 1)
    for node in range(700):
        grafted_quietly(tree, node, 2 * node + 1)
    tree.check_integrity()
    assert tree.size == 1401
    assert tree.ids[:1401] == list(range(1401))
    assert tree.ancestors(1023) == [511, 255, 127, 63, 31, 15, 7, 3, 1]


def grafted_quietly(tree: Tree, parent: int, first_id: int) -> None:
    tree.graft(parent, [first_id, first_id + 1], [3, 4], [0.0, 0.0])


@dataclass(eq=False)
class Node:
    """A node that knows its relatives by reference, not by number."""

    id: int
    token: int
    logprob: float = 0.0
    raw: float = 0.0
    slot: int = UNGROWN
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    def below(self) -> set[Node]:
        return {self}.union(*(child.below() for child in self.children))

    def path_from(self, root: Node) -> list[Node]:
        """Root excluded, this one included."""
        if self is root:
            return []
        assert self.parent is not None
        return [*self.parent.path_from(root), self]


# Sixteenths add up without rounding.
LOGPROBS = st.lists(st.integers(-64, 0).map(lambda each: each / 16), min_size=4, max_size=4)


class TreeMachine(RuleBasedStateMachine):
    @initialize(is_named=st.booleans())
    def start(self, is_named: bool) -> None:
        self.next_id = 1 if is_named else 0
        self.tree = Tree(0 if is_named else UNNAMED, 2)
        self.root = Node(0 if is_named else UNNAMED, 2)
        self.nodes = [self.root]
        self.graft_much()
        self.graft_much()

    def alive(self, data: st.DataObject) -> int:
        below = self.root.below()
        return data.draw(st.sampled_from([i for i, node in enumerate(self.nodes) if node in below]))

    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(0, VOCAB - 1), max_size=4, unique=True),
        logprobs=LOGPROBS,
    )
    def graft(self, data: st.DataObject, tokens: list[int], logprobs: list[float]) -> None:
        index = data.draw(st.integers(0, len(self.nodes) - 1))
        parent = self.nodes[index]
        ids = list(range(self.next_id, self.next_id + len(tokens)))
        chosen = logprobs[: len(tokens)]
        if parent.children:
            with pytest.raises(ValueError, match="already"):
                self.tree.graft(index, ids, tokens, chosen)
            return
        self.tree.graft(index, ids, tokens, chosen, [2 * each for each in chosen])
        self.next_id += len(ids)
        columns = zip(ids, tokens, logprobs, strict=False)
        parent.children = [Node(i, token, p, 2 * p, parent=parent) for i, token, p in columns]
        self.nodes += parent.children

    @rule()
    def graft_much(self) -> None:
        """Childless nodes below the root get two children each: trees soon outgrow their columns."""
        below = self.root.below()
        leaves = [i for i, node in enumerate(self.nodes) if node in below and not node.children][:40]
        for index in leaves:
            parent, ids = self.nodes[index], [self.next_id, self.next_id + 1]
            self.tree.graft(index, ids, [3, 1], [-0.25, -2.0], [-1.0, -1.0])
            parent.children = [
                Node(ids[0], 3, -0.25, -1.0, parent=parent),
                Node(ids[1], 1, -2.0, -1.0, parent=parent),
            ]
            self.nodes += parent.children
            self.next_id += 2

    @rule(data=st.data(), slot=st.integers(0, 99))
    def process(self, data: st.DataObject, slot: int) -> None:
        index = self.alive(data)
        self.tree.slots[index] = self.nodes[index].slot = slot

    @rule(data=st.data())
    def move_root(self, data: st.DataObject) -> None:
        index = self.alive(data)
        self.tree.move_root(index)
        self.root = self.nodes[index]

    @rule()
    def compact(self) -> None:
        below = self.root.below()
        kept = [i for i, node in enumerate(self.nodes) if node in below]
        assert self.tree.compact() == kept
        self.nodes = [self.nodes[i] for i in kept]
        self.root.parent = None
        assert self.tree.root == 0

    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        """As an outcome does: on to a node below, and the others go."""
        below = self.root.below() - {self.root}
        inner = [i for i, node in enumerate(self.nodes) if node in below and node.children]
        if inner:
            index = data.draw(st.sampled_from(inner))
            self.tree.move_root(index)
            self.root = self.nodes[index]
            self.compact()

    @precondition(lambda self: len(self.nodes) > 40)
    @rule(token=st.integers(0, VOCAB - 1), is_named=st.booleans())
    def replant(self, token: int, is_named: bool) -> None:
        self.root = Node(self.next_id if is_named else UNNAMED, token)
        self.next_id += is_named
        self.nodes = [self.root]
        self.tree.replant(self.root.id, token)

    @rule(data=st.data(), more=st.lists(st.integers(0, VOCAB - 1), max_size=2))
    def walk(self, data: st.DataObject, more: list[int]) -> None:
        tokens = [node.token for node in self.nodes[self.alive(data)].path_from(self.root)] + more
        expected, node = list[Node](), self.root
        for token in tokens:
            found = [child for child in node.children if child.token == token]
            if not found:
                break
            node = found[0]
            expected.append(node)
        assert [self.nodes[i] for i in self.tree.walk(tokens)] == expected

    @invariant()
    def columns_are_those_of_the_nodes(self) -> None:
        tree, size = self.tree, len(self.nodes)
        tree.check_integrity()
        assert tree.size == size
        assert self.nodes[tree.root] is self.root
        for column, name in (("ids", "id"), ("tokens", "token"), ("slots", "slot")):
            assert getattr(tree, column)[:size] == [getattr(node, name) for node in self.nodes]
        first = 0 if self.nodes[0].parent is None else 1
        for column, name in (("logprobs", "logprob"), ("raws", "raw")):
            assert getattr(tree, column)[first:size] == [getattr(n, name) for n in self.nodes[first:]]
        place = {node: index for index, node in enumerate(self.nodes)}
        for index, node in enumerate(self.nodes):
            assert [self.nodes[i] for i in tree.children(index)] == node.children
            assert node.parent is None or place[node.parent] == tree.parents[index]

    @invariant()
    def what_is_below_the_root_is_seen_from_there(self) -> None:
        depths, values = self.tree.relative_depths(), self.tree.relative_values()
        below = self.root.below()
        for index, node in enumerate(self.nodes):
            if node in below:
                path = node.path_from(self.root)
                assert depths[index] == len(path)
                assert values[index] == sum(each.logprob for each in path)
                if path:
                    ancestors = [self.nodes[i] for i in self.tree.ancestors(index)]
                    assert ancestors == path[-2::-1]
        best, node = list[Node](), self.root
        while node.children and len(best) < 3:
            node = node.children[0]
            best.append(node)
        assert [self.nodes[i] for i in self.tree.best_path(3)] == best


TreeMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTree = pytest.mark.timeout(120)(TreeMachine.TestCase)
