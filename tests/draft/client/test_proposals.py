"""The likeliest nodes of a mirror: the best tree of every size, parents first, within its bounds."""

import random
from dataclasses import replace

import numpy as np
import pytest

from ssd.draft.client.branching import depths_of, path_to
from ssd.draft.client.proposals import TreeLimits, likely_nodes
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
