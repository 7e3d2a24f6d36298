"""The likeliest nodes of a mirror are the best tree of every size; cuts and walks keep whole paths."""

import random
from dataclasses import replace

import numpy as np
import pytest

from ssd.draft.client.proposals import (
    TreeLimits,
    check_tree,
    cut,
    depths_of,
    first_path,
    has_path,
    leaves_of,
    likely_nodes,
    path_to,
    simplified,
    subtree,
    walk,
)
from ssd.draft.protocol.messages import TreePart
from tests.draft.client.one_mirror import ROW, OneMirror
from tests.draft.client.test_grammar_paths import Rules

WIDE = TreeLimits(most=64, depth=16, least=0.0)


def grown(draw: random.Random, num_families: int) -> tuple[OneMirror, dict[tuple[int, ...], float]]:
    """A tree whose nodes are grown at random, and the chance of each path of it."""
    ids, parents, tokens, logprobs = list[int](), list[int](), list[int](), list[float]()
    paths: dict[int, tuple[int, ...]] = {0: ()}
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    ungrown = [0]
    for _ in range(num_families):
        parent = ungrown.pop(draw.randrange(len(ungrown)))
        shares = np.sort(np.array([draw.random() for _ in range(5)]))[::-1]
        for rank, share in enumerate((shares / shares.sum())[:4].tolist()):
            node, token = len(ids) + 1, 10 * rank + draw.randrange(10)
            ids.append(node)
            parents.append(parent)
            tokens.append(token)
            logprobs.append(float(np.log(np.float32(share))))
            paths[node] = (*paths[parent], token)
            chances[paths[node]] = chances[paths[parent]] * share
            ungrown.append(node)
    mirror = OneMirror(1)
    mirror.take(TreePart(ROW, 1, 0, 0, 0, 0, ids, parents, tokens, logprobs))
    return mirror, {path: chance for path, chance in chances.items() if path}


def offered(
    mirror: OneMirror, bounds: TreeLimits, rules: Rules | None = None
) -> dict[tuple[int, ...], float]:
    """The paths of the nodes, in their order, with their chances."""
    tokens, chances, parents = likely_nodes(mirror.table, ROW, mirror.table.end_of(ROW), rules, bounds)
    assert all(parent < place for place, parent in enumerate(parents))
    paths = [tuple(tokens[node] for node in path_to(parents, place)) for place in range(len(tokens))]
    assert [len(path) for path in paths] == list(depths_of(parents, len(tokens)))
    return dict(zip(paths, chances, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_no_tree_of_the_same_size_is_likelier(seed: int) -> None:
    mirror, chances = grown(random.Random(seed), 12)
    found = offered(mirror, WIDE)
    best = sorted(chances, key=lambda path: -chances[path])
    assert list(found) == best
    assert list(found.values()) == pytest.approx([chances[path] for path in best], rel=1e-5)
    assert list(offered(mirror, replace(WIDE, most=7))) == best[:7]
    assert list(offered(mirror, replace(WIDE, depth=2))) == [path for path in best if len(path) <= 2]
    assert list(offered(mirror, replace(WIDE, least=0.1))) == [path for path in best if chances[path] > 0.1]


def test_below_a_grammar_only_what_it_allows() -> None:
    mirror, chances = grown(random.Random(1), 12)
    first = max((path for path in chances if len(path) == 1), key=lambda path: chances[path])
    found = offered(mirror, WIDE, Rules(frozenset({first})))
    assert found
    assert {path[:1] for path in found}.isdisjoint({first})
    assert set(found) == {path for path in chances if path[:1] != first}


def test_what_must_follow_is_one_path_and_certain() -> None:
    mirror, chances = grown(random.Random(2), 12)
    least = min((path for path in chances if len(path) == 1), key=lambda path: chances[path])
    found = offered(mirror, WIDE, Rules(forced={(): least[0], least: 99, (*least, 99): 98}))
    assert found == {least: 1.0, (*least, 99): 1.0, (*least, 99, 98): 1.0}


def test_nothing_is_offered_where_nothing_is_known() -> None:
    mirror, _chances = grown(random.Random(3), 3)
    assert likely_nodes(mirror.table, ROW, None, None, WIDE) == ([], [], [])


FORK = ((5, 6, 7, 8), (-1, -1, 0, 1))
"""5 → 7 and 6 → 8."""


def random_tree(drawn: random.Random, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    parents = tuple(drawn.randrange(-1, place) for place in range(size))
    return tuple(drawn.randrange(4) for _ in range(size)), parents


def paths_of(tokens: tuple[int, ...], parents: tuple[int, ...] | None) -> set[tuple[int, ...]]:
    return {tuple(tokens[each] for each in path_to(parents, node)) for node in range(len(tokens))}


def test_a_chain_is_its_own_tree() -> None:
    assert simplified((-1, 0, 1)) is None
    assert simplified((-1, 0, 0)) == (-1, 0, 0)
    assert list(depths_of(None, 3)) == list(depths_of((-1, 0, 1), 3)) == [1, 2, 3]
    assert list(path_to(None, 2)) == list(path_to((-1, 0, 1), 2)) == [0, 1, 2]
    assert cut((1, 2, 3), None, count=9, depth=2) == ((1, 2), None)
    assert cut((1, 2, 3), None, count=-1, depth=2) == ((), None)


@pytest.mark.parametrize("parents", [(-1,), (0, -1), (-1, 2, 1), (-2, 0)])
def test_what_is_no_tree_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="parent"):
        check_tree((1, 2), parents) if len(parents) == 2 else check_tree((1, 2, 3), parents)


def test_cuts_keep_whole_paths() -> None:
    assert cut(*FORK, count=3, depth=9) == ((5, 6, 7), (-1, -1, 0))
    assert cut(*FORK, count=4, depth=1) == ((5, 6), (-1, -1))
    assert subtree(*FORK, [False, True, True, True]) == ((6, 8), None)
    assert leaves_of(FORK[1]) == [2, 3]
    for seed in range(200):
        drawn = random.Random(seed)
        tokens, parents = random_tree(drawn, drawn.randint(1, 12))
        depth, count = drawn.randint(0, 4), drawn.randint(0, 12)
        less = cut(tokens, parents, count=count, depth=depth)
        check_tree(*less)
        assert paths_of(*less) <= paths_of(tokens, parents)
        allowed = {node for node in range(min(count, len(tokens))) if len(path_to(parents, node)) <= depth}
        assert paths_of(*less) == {tuple(tokens[i] for i in path_to(parents, node)) for node in allowed}


def test_the_first_path_takes_first_children() -> None:
    assert first_path(*FORK) == (5, 7)
    assert first_path((5, 6, 7), (-1, -1, 1)) == (5,)
    assert first_path((5, 6), None) == (5, 6)


def test_a_walk_goes_as_far_as_the_decided_tokens_do() -> None:
    """Against all paths: the longest whose tokens are the decided ones."""
    for seed in range(500):
        drawn = random.Random(seed)
        tokens, parents = random_tree(drawn, drawn.randint(1, 10))
        decided = [drawn.randrange(4) for _ in range(len(tokens) + 1)]
        path = walk(decided, tokens, parents)
        for parent, node in zip([-1, *path], path, strict=False):
            assert parents[node] == parent
            assert tokens[node] == decided[parent + 1]
        last = path[-1] if path else -1
        assert all(tokens[node] != decided[last + 1] for node in range(len(tokens)) if parents[node] == last)
        assert has_path(tokens, parents, [tokens[node] for node in path])


def test_a_path_that_is_not_there_is_not_found() -> None:
    assert has_path(*FORK, (6, 8))
    assert not has_path(*FORK, (5, 8))
    assert has_path((5, 6), None, (5,))
    assert not has_path((5, 6), None, (6,))
