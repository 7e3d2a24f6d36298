"""A request's grammar, for whoever proposes tokens: which children of a node may follow, and what must.

A draft does not know the grammar. Its likeliest token is often one that is forbidden (a line break where a
schema has a space), and a path cut there would end; the likeliest that is allowed goes on. Where the grammar
leaves one token, that is proposed whatever the draft says, and behind the draft's tree too. Knows mirrors and
tokens. Does not know how a grammar is kept: places in a text come from the host. Proposals are verified, so
nothing here can change a token.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from ssd.draft.mirrors import Mirrors


class Place(Protocol):
    """Somewhere in a text: at its end, or behind tokens that are only guessed."""

    def only(self) -> int | None:
        """The token that must follow, where no other may."""
        ...

    def allows(self, token: int) -> bool: ...

    def after(self, token: int) -> "Place":
        """Behind a token that is allowed."""
        ...


_ALMOST = 1 - 2**-20
"""A chance of 1 is that of what must follow, and nothing else's."""
Child = tuple[int | None, int, float]
"""A node, or None behind the draft's tree; its token; the chance that it follows its parent."""


def children_under(mirrors: Mirrors, row: int, node: int | None, place: Place) -> list[Child]:
    """What may follow a node, the likeliest first."""
    only = place.only()
    if only is not None:
        return [(None if node is None else mirrors.child(row, node, only), only, 1.0)]
    if node is None:
        return []
    known = [(child, token, math.exp(value)) for child, token, value in mirrors.children(row, node)]
    allowed = [each for each in known if place.allows(each[1])]
    total = sum(chance for _child, _token, chance in allowed)
    # Of what the draft did not name, as much is forbidden as of what it named.
    share = sum(chance for _child, _token, chance in known) / total if total else 0.0
    return [(child, token, min(_ALMOST, chance * share)) for child, token, chance in allowed]


def path_under(
    mirrors: Mirrors, row: int, node: int | None, limit: int, place: Place
) -> tuple[list[int], list[float]]:
    """The likeliest continuation of a node that the grammar allows: its tokens, and the chance of each."""
    tokens, chances, chance = list[int](), list[float](), 1.0
    while len(tokens) < limit and (children := children_under(mirrors, row, node, place)):
        node, token, share = children[0]
        place = place.after(token)
        chance *= share
        tokens.append(token)
        chances.append(chance)
    return tokens, chances


def num_forced(place: Place, limit: int) -> int:
    """How many tokens must follow, one after the other."""
    count = 0
    while count < limit and (only := place.only()) is not None:
        place = place.after(only)
        count += 1
    return count


def num_certain(chances: Sequence[float]) -> int:
    """Of the chances of a path or tree under a grammar, how many first ones are of what must follow."""
    count = 0
    while count < len(chances) and chances[count] == 1.0:
        count += 1
    return count
