"""Trees of drafted tokens as lists: cut, filtered and walked, against a plain set of paths."""

import random

import pytest

from ssd.draft.client.branching import (
    check_tree,
    cut,
    depths_of,
    first_path,
    has_path,
    leaves_of,
    path_to,
    simplified,
    subtree,
    walk,
)

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
