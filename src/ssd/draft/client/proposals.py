"""What a mirror offers for verification: the likeliest nodes of its tree, under the request's grammar if any.

Nodes come by falling probability, and a parent before its children, since a child is never likelier: so the
first n of them are the best tree of n nodes.

A draft does not know the grammar. Its likeliest token is often forbidden (a line break where a schema has a
space), and the path would end there; the likeliest allowed token continues it. Where the grammar allows one
token, that token is proposed whatever the draft says, also behind the draft's tree. Proposals are verified,
so nothing here can change a token.

Knows mirrors, probabilities and grammar states, which come from the host. Does not know how many nodes are
worth verifying (controller.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

import msgspec

from ssd.draft.client.branching import first_nodes, parents_of, simplified
from ssd.draft.client.mirrors import Distribution, Mirrors
from ssd.draft.client.router import ClientSession


class Path(msgspec.Struct, frozen=True):
    """A speculation: tokens, and for each the probability that it and all before it are accepted."""

    tokens: Sequence[int] = ()
    chances: Sequence[float] = ()
    drawn: Sequence[Distribution] | None = None
    """Under ratio acceptance: the distribution that each token was drawn from."""
    parents: Sequence[int] | None = None
    """Of each token, the index of its parent, or -1 for the end of the text. None: a chain."""
    num_certain: int = 0
    """How many of the first tokens are forced by the request's grammar."""

    def cut(self, length: int) -> "Path":
        """Keeps the first `length` tokens. That works for a tree too: parents come before their children."""
        if length == len(self.tokens):
            return self
        drawn = None if self.drawn is None else self.drawn[:length]
        parents = None if self.parents is None else simplified(self.parents[:length])
        certain = min(length, self.num_certain)
        return Path(self.tokens[:length], self.chances[:length], drawn, parents, certain)

    def behind(self, tokens: Sequence[int]) -> "Path":
        """The path that starts with these forced tokens and goes on with this one."""
        if not tokens:
            return self
        count = len(tokens)
        parents = parents_of(self.parents, len(self.tokens))
        moved = [*range(-1, count - 1), *(count + each for each in parents)]
        chances = [*[1.0] * count, *self.chances]
        certain = count + self.num_certain
        return Path([*tokens, *self.tokens], chances, None, simplified(moved), certain)

    def chain(self) -> "Path":
        """The likeliest path of a tree."""
        if self.parents is None:
            return self
        nodes = first_nodes(self.parents)
        tokens, chances = [self.tokens[each] for each in nodes], [self.chances[each] for each in nodes]
        return Path(tokens, chances, num_certain=self.num_certain)


class GrammarView(Protocol):
    """What proposals need of a grammar state: at the text's end, or after drafted tokens."""

    def only(self) -> int | None:
        """The only token that may follow; None if there are several or none."""
        ...

    def allows(self, token: int) -> bool: ...

    def after(self, token: int) -> "GrammarView":
        """The state after an allowed token."""
        ...


_NO_PATH = Path()
GrammarViews = Mapping[Any, GrammarView]
"""Grammar states of the texts that have a grammar."""
NO_GRAMMARS: GrammarViews = {}
_ALMOST = 1 - 2**-20
"""A chance of 1 is that of what must follow, and nothing else's."""
Child = tuple[int | None, int, float]
"""A node, or None behind the draft's tree; its token; the chance that it follows its parent."""


def children_under(mirrors: Mirrors, seq: int, node: int | None, grammar: GrammarView) -> list[Child]:
    """What may follow a node, the likeliest first."""
    only = grammar.only()
    if only is not None:
        return [(None if node is None else mirrors.child(seq, node, only), only, 1.0)]
    if node is None:
        return []
    known = [(child, token, math.exp(value)) for child, token, value in mirrors.children(seq, node)]
    allowed = [each for each in known if grammar.allows(each[1])]
    total = sum(chance for _child, _token, chance in allowed)
    # Of what the draft did not name, as much is forbidden as of what it named.
    share = sum(chance for _child, _token, chance in known) / total if total else 0.0
    return [(child, token, min(_ALMOST, chance * share)) for child, token, chance in allowed]


def path_under(
    mirrors: Mirrors, seq: int, node: int | None, limit: int, grammar: GrammarView
) -> tuple[list[int], list[float]]:
    """The likeliest continuation of a node that the grammar allows: its tokens, and the chance of each."""
    tokens, chances, chance = list[int](), list[float](), 1.0
    while len(tokens) < limit and (children := children_under(mirrors, seq, node, grammar)):
        node, token, share = children[0]
        grammar = grammar.after(token)
        chance *= share
        tokens.append(token)
        chances.append(chance)
    return tokens, chances


def num_forced(grammar: GrammarView, limit: int) -> int:
    """How many tokens must follow, one after the other."""
    count = 0
    while count < limit and (only := grammar.only()) is not None:
        grammar = grammar.after(only)
        count += 1
    return count


def num_certain(chances: Sequence[float]) -> int:
    """Of the chances of a path or tree under a grammar, how many first ones are of what must follow."""
    count = 0
    while count < len(chances) and chances[count] == 1.0:
        count += 1
    return count


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


def likely_nodes(
    mirrors: Mirrors, seq: int, node: int | None, grammar: GrammarView | None, bounds: Bounds
) -> Nodes:
    """The likeliest nodes below one, within bounds. None: one that is not in the draft's tree."""
    tokens, chances, parents = list[int](), list[float](), list[int]()
    waiting, number = list[tuple[float, int, int | None, int, int, int, GrammarView | None]](), count()
    chance, parent, depth = 1.0, -1, 0
    while True:
        for child, token, share in _children(mirrors, seq, node, grammar) if depth < bounds.depth else ():
            if chance * share > bounds.least:
                heappush(waiting, (-chance * share, next(number), child, token, parent, depth + 1, grammar))
        if not waiting or len(tokens) == bounds.most:
            return tokens, chances, parents
        negative, _number, node, token, above, depth, before = heappop(waiting)
        grammar = None if before is None else before.after(token)
        chance, parent = -negative, len(tokens)
        tokens.append(token)
        chances.append(chance)
        parents.append(above)


def _children(mirrors: Mirrors, seq: int, node: int | None, grammar: GrammarView | None) -> list[Child]:
    if grammar is not None:
        return children_under(mirrors, seq, node, grammar)
    if node is None:
        return []
    children = mirrors.children(seq, node)
    # One of them comes at most. What a draft says of each may be corrected, or a lie: together it is no more.
    total = max(1.0, sum(math.exp(value) for _child, _token, value in children))
    return [(child, token, math.exp(value) / total) for child, token, value in children]


def known_path(mirrors: Mirrors, session: ClientSession | None, limit: int) -> Path:
    """The likeliest continuation that the mirror knows, of at most `limit` tokens."""
    # The tree starts after the forced tokens, and here there is no grammar to propose those by.
    if session is None or not session.is_open or session.forced:
        return _NO_PATH
    tokens, chances = mirrors.path(session.seq, min(limit, session.room))
    if not tokens:
        return _NO_PATH
    if not mirrors.has_drawn(session.seq):
        return Path(tokens, chances)
    # Cut before the first token whose distribution is not known.
    drawn = mirrors.drawn_along(session.seq, tokens)
    return Path(tokens[: len(drawn)], chances[: len(drawn)], drawn)


def offer(
    mirrors: Mirrors,
    session: ClientSession | None,
    limit: int,
    grammar: GrammarView | None,
    trees: Bounds | None,
) -> Path:
    """A sequence's path, or its tree if there are bounds for one, as its grammar allows.

    Under ratio acceptance its plain path: filtering drawn tokens would bias it.
    """
    if session is None or session.sampling.ratio or (grammar is None and trees is None):
        return known_path(mirrors, session, limit)
    seq, forced = session.seq, session.forced[: min(limit, session.room)]
    limit = min(limit, session.room) - len(forced)
    for token in forced:
        grammar = None if grammar is None else grammar.after(token)
    node = mirrors.end_of(seq) if session.is_open else None
    if trees is not None:
        tokens, chances, parents = likely_nodes(mirrors, seq, node, grammar, replace(trees, depth=limit))
    else:
        found = ([], []) if grammar is None else path_under(mirrors, seq, node, limit, grammar)
        (tokens, chances), parents = found, [*range(-1, len(found[0]) - 1)]
    certain = 0 if grammar is None else num_certain(chances)
    return Path(tokens, chances, None, simplified(parents), certain).behind(forced)
