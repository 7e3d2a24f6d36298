"""Trees of drafted tokens: the tokens, and for each the index of its parent, or -1 if it follows the text.

Parents come before their children, so the first n nodes of a tree are a tree too. Functions that take
`Parents` also take a chain, for which the parents are None. Pure functions. Knows tokens and indices. Does
not know models, probabilities or the verifier.
"""

from collections.abc import Sequence

Tree = tuple[tuple[int, ...], tuple[int, ...] | None]
"""Tokens and parents."""
Parents = Sequence[int] | None


def parents_of(parents: Parents, count: int) -> Sequence[int]:
    """The parents as a sequence, also those of a chain."""
    return range(-1, count - 1) if parents is None else parents


def simplified(parents: Sequence[int]) -> tuple[int, ...] | None:
    """None if the parents are those of a chain; otherwise the parents."""
    return None if all(parent == place - 1 for place, parent in enumerate(parents)) else tuple(parents)


def check_tree(tokens: Sequence[int], parents: Parents) -> None:
    """ValueError unless each token has a parent that comes before it."""
    if parents is None:
        return
    if len(parents) != len(tokens):
        raise ValueError(f"{len(parents)} parents for {len(tokens)} drafted tokens: give one for each")
    for place, parent in enumerate(parents):
        if not -1 <= parent < place:
            raise ValueError(f"node {place} follows node {parent}: a parent comes before its children")


def depths_of(parents: Parents, count: int) -> Sequence[int]:
    """The depth of each node: 1 if it follows the text, otherwise one more than its parent's."""
    if parents is None:
        return range(1, count + 1)
    depths = list[int]()
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return depths


def path_to(parents: Parents, node: int) -> Sequence[int]:
    """The nodes on the path from the text to `node`, which comes last; empty for -1."""
    if parents is None:
        return range(node + 1)
    path = list[int]()
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def leaves_of(parents: Sequence[int]) -> list[int]:
    """The nodes that have no children."""
    followed = {*parents}
    return [node for node in range(len(parents)) if node not in followed]


def subtree(tokens: Sequence[int], parents: Parents, kept: Sequence[bool]) -> Tree:
    """The tree of the nodes for which `kept` is true and whose ancestors are all kept, in the same order."""
    places, found, new_parents = dict[int, int](), list[int](), list[int]()
    for place, parent in enumerate(parents_of(parents, len(tokens))):
        if kept[place] and (parent < 0 or parent in places):
            new_parents.append(places[parent] if parent >= 0 else -1)
            places[place] = len(found)
            found.append(tokens[place])
    return tuple(found), simplified(new_parents)


def cut(tokens: Sequence[int], parents: Parents, *, count: int, depth: int) -> Tree:
    """Of the first `count` nodes those that are at most `depth` tokens deep."""
    if parents is None:
        return tuple(tokens[: max(0, min(count, depth))]), None
    kept = [place < count and each <= depth for place, each in enumerate(depths_of(parents, len(tokens)))]
    return subtree(tokens, parents, kept)


def first_nodes(parents: Sequence[int]) -> list[int]:
    """The path that always takes the first child: the likeliest path, if nodes are sorted by probability."""
    path, end = list[int](), -1
    for place, parent in enumerate(parents):
        if parent == end:
            path.append(place)
            end = place
    return path


def first_path(tokens: Sequence[int], parents: Parents) -> tuple[int, ...]:
    """The tokens of the path that `first_nodes` returns; of a chain, all tokens."""
    return tuple(tokens) if parents is None else tuple(tokens[node] for node in first_nodes(parents))


def walk(decided: Sequence[int], tokens: Sequence[int], parents: Parents) -> list[int]:
    """The accepted nodes: starting at the end of the text, goes to the child whose token was decided there.

    `decided[0]` is the token that was decided after the text, `decided[i + 1]` the one after node i.
    """
    if parents is None:
        count = 0
        while count < len(tokens) and decided[count] == tokens[count]:
            count += 1
        return list(range(count))
    path, end = list[int](), -1
    # Children come after their parents: one pass meets them in order.
    for place, parent in enumerate(parents):
        if parent == end and tokens[place] == decided[end + 1]:
            path.append(place)
            end = place
    return path


def has_path(tokens: Sequence[int], parents: Parents, path: Sequence[int]) -> bool:
    """Whether some path of the tree begins with these tokens."""
    if parents is None:
        return len(path) <= len(tokens) and tuple(tokens[: len(path)]) == tuple(path)
    ends = {-1}
    for wanted in path:
        ends = {place for place, parent in enumerate(parents) if parent in ends and tokens[place] == wanted}
    return bool(ends)
