"""A speculation of several paths: tokens, and of each the place of the one it follows.

Parents come before their children; -1 is the end of the text. So the first so many nodes are a tree again.
None instead of parents is a chain, which each of these functions takes as well. Pure: knows no models, no
chances and not who verifies.
"""

from collections.abc import Sequence

Tree = tuple[tuple[int, ...], tuple[int, ...] | None]
"""Tokens and parents."""
Parents = Sequence[int] | None


def parents_of(parents: Parents, count: int) -> Sequence[int]:
    """Spelled out, of a chain as well."""
    return range(-1, count - 1) if parents is None else parents


def simplified(parents: Sequence[int]) -> tuple[int, ...] | None:
    """None where they are a chain."""
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
    """Of each node, how many tokens its path has: 1 at the end of the text."""
    if parents is None:
        return range(1, count + 1)
    depths = list[int]()
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return depths


def path_to(parents: Parents, node: int) -> Sequence[int]:
    """The nodes from the end of the text to this one, itself the last; of -1 none."""
    if parents is None:
        return range(node + 1)
    path = list[int]()
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def leaves_of(parents: Sequence[int]) -> list[int]:
    """The nodes that nobody follows."""
    followed = {*parents}
    return [node for node in range(len(parents)) if node not in followed]


def subtree(tokens: Sequence[int], parents: Parents, kept: Sequence[bool]) -> Tree:
    """The nodes that are kept and all of whose ancestors are, in the order they had."""
    places, found, new_parents = dict[int, int](), list[int](), list[int]()
    for place, parent in enumerate(parents_of(parents, len(tokens))):
        if kept[place] and (parent < 0 or parent in places):
            new_parents.append(places[parent] if parent >= 0 else -1)
            places[place] = len(found)
            found.append(tokens[place])
    return tuple(found), simplified(new_parents)


def cut(tokens: Sequence[int], parents: Parents, *, count: int, depth: int) -> Tree:
    """The first nodes, so many at most, and none deeper than so many tokens."""
    if parents is None:
        return tuple(tokens[: max(0, min(count, depth))]), None
    kept = [place < count and each <= depth for place, each in enumerate(depths_of(parents, len(tokens)))]
    return subtree(tokens, parents, kept)


def first_nodes(parents: Sequence[int]) -> list[int]:
    """The path that takes the first child everywhere: the likeliest, where nodes come in order of chance."""
    path, end = list[int](), -1
    for place, parent in enumerate(parents):
        if parent == end:
            path.append(place)
            end = place
    return path


def first_path(tokens: Sequence[int], parents: Parents) -> tuple[int, ...]:
    """Its tokens."""
    return tuple(tokens) if parents is None else tuple(tokens[node] for node in first_nodes(parents))


def walk(decided: Sequence[int], tokens: Sequence[int], parents: Parents) -> list[int]:
    """The nodes that were decided: from the end of the text to the child that has its decided token, and on.

    `decided` has the token after the text, then the one after each node.
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
    """Whether these tokens follow the text by nodes of the tree."""
    if parents is None:
        return len(path) <= len(tokens) and tuple(tokens[: len(path)]) == tuple(path)
    ends = {-1}
    for wanted in path:
        ends = {place for place, parent in enumerate(parents) if parent in ends and tokens[place] == wanted}
    return bool(ends)
