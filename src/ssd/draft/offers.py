"""What a mirror offers for verification: the likeliest nodes of its tree, under the request's grammar if any.

Nodes come by falling chance, and a parent before its children, since a child is never likelier: so the first
so many of them are the best tree of that size. Knows mirrors, chances and grammars' places. Does not know how
many nodes are worth verifying (controller.py).
"""

import math
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from ssd.draft.guide import Child, Place, children_under
from ssd.draft.mirrors import Mirrors

Nodes = tuple[list[int], list[float], list[int]]
"""Tokens; the chance that the text runs through each; of each, the place of the one it follows, or -1."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is not worth an offer."""

    most: int
    """Nodes of a sequence."""
    depth: int
    """Tokens of a path."""
    least: float
    """Chance of a node."""


def likely_nodes(mirrors: Mirrors, row: int, node: int | None, place: Place | None, bounds: Bounds) -> Nodes:
    """The likeliest nodes below one, within bounds. None: one that is not in the draft's tree."""
    tokens, chances, parents = list[int](), list[float](), list[int]()
    waiting, number = list[tuple[float, int, int | None, int, int, int, Place | None]](), count()
    chance, parent, depth = 1.0, -1, 0
    while True:
        for child, token, share in _children(mirrors, row, node, place) if depth < bounds.depth else ():
            if chance * share > bounds.least:
                heappush(waiting, (-chance * share, next(number), child, token, parent, depth + 1, place))
        if not waiting or len(tokens) == bounds.most:
            return tokens, chances, parents
        negative, _number, node, token, above, depth, before = heappop(waiting)
        place = None if before is None else before.after(token)
        chance, parent = -negative, len(tokens)
        tokens.append(token)
        chances.append(chance)
        parents.append(above)


def _children(mirrors: Mirrors, row: int, node: int | None, place: Place | None) -> list[Child]:
    if place is not None:
        return children_under(mirrors, row, node, place)
    if node is None:
        return []
    children = mirrors.children(row, node)
    # One of them comes at most. What a draft says of each may be corrected, or a lie: together it is no more.
    total = max(1.0, sum(math.exp(value) for _child, _token, value in children))
    return [(child, token, math.exp(value) / total) for child, token, value in children]
