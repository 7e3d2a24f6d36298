"""What a mirror offers for verification: the likeliest nodes of its tree, under the request's grammar if any.

A tree of drafted tokens is its tokens, and for each the index of its parent, or -1 if it follows the text.
Parents come before their children, so the first n nodes of a tree are a tree too. Functions that take
`Parents` also take a chain, for which the parents are None.

Nodes are offered in order of falling probability. A child is never likelier than its parent, so the first n
nodes are the likeliest tree of n nodes.

A draft does not know the grammar. Its likeliest token is often forbidden (a line break where a schema has a
space), and the path would end there; instead it continues with the likeliest allowed token. If the grammar
allows only one token, that token is proposed, even if the draft's tree does not contain it. Proposals are
verified, so nothing here can change a token.

Knows mirrors, probabilities and grammar states, which the target passes in. Does not know how many nodes are
worth verifying (controller.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

import msgspec

from ssd.draft.client.mirrors import Mirrors
from ssd.draft.client.router import ClientSession

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


class DraftedTokens(msgspec.Struct, frozen=True):
    """A speculation: tokens, and for each the probability that the path up to it is accepted."""

    tokens: Sequence[int] = ()
    chances: Sequence[float] = ()
    parents: Sequence[int] | None = None
    """For each token the index of its parent; -1: it follows the text. None: a chain."""
    num_certain: int = 0
    """How many of the first tokens are forced by the request's grammar."""

    def cut(self, length: int) -> "DraftedTokens":
        """Keeps the first `length` tokens. That works for a tree too: parents come before their children."""
        if length == len(self.tokens):
            return self
        parents = None if self.parents is None else simplified(self.parents[:length])
        certain = min(length, self.num_certain)
        return DraftedTokens(self.tokens[:length], self.chances[:length], parents, certain)

    def behind(self, tokens: Sequence[int]) -> "DraftedTokens":
        """A path of these forced tokens, followed by this path."""
        if not tokens:
            return self
        count = len(tokens)
        parents = parents_of(self.parents, len(self.tokens))
        moved = [*range(-1, count - 1), *(count + each for each in parents)]
        chances = [*[1.0] * count, *self.chances]
        certain = count + self.num_certain
        return DraftedTokens([*tokens, *self.tokens], chances, simplified(moved), certain)

    def chain(self) -> "DraftedTokens":
        """The likeliest path of a tree."""
        if self.parents is None:
            return self
        nodes = first_nodes(self.parents)
        tokens, chances = [self.tokens[each] for each in nodes], [self.chances[each] for each in nodes]
        return DraftedTokens(tokens, chances, num_certain=self.num_certain)


class GrammarView(Protocol):
    """What proposals need of a grammar state: at the text's end, or after drafted tokens."""

    def only(self) -> int | None:
        """The only token that may follow; None if there are several or none."""
        ...

    def allows(self, token: int) -> bool: ...

    def after(self, token: int) -> "GrammarView":
        """The state after an allowed token."""
        ...


_NO_PATH = DraftedTokens()
GrammarViews = Mapping[Any, GrammarView]
"""Grammar states of the texts that have a grammar."""
NO_GRAMMARS: GrammarViews = {}
_ALMOST = 1 - 2**-20
"""Largest chance of a token that is not forced. `num_certain` recognises forced tokens by a chance of 1."""
Child = tuple[int | None, int, float]
"""Node id (None: the draft's tree has no such node), token, and the chance that it follows its parent."""


def children_under(mirrors: Mirrors, seq: int, node: int | None, grammar: GrammarView) -> list[Child]:
    """The children of a node that the grammar allows, likeliest first; or the token that it forces."""
    only = grammar.only()
    if only is not None:
        return [(None if node is None else mirrors.child(seq, node, only), only, 1.0)]
    if node is None:
        return []
    known = [(child, token, math.exp(value)) for child, token, value in mirrors.children(seq, node)]
    allowed = [each for each in known if grammar.allows(each[1])]
    total = sum(chance for _child, _token, chance in allowed)
    # Assume that the grammar forbids the same share of the tokens that the draft did not send.
    share = sum(chance for _child, _token, chance in known) / total if total else 0.0
    return [(child, token, min(_ALMOST, chance * share)) for child, token, chance in allowed]


def path_under(
    mirrors: Mirrors, seq: int, node: int | None, limit: int, grammar: GrammarView
) -> tuple[list[int], list[float]]:
    """The likeliest path below a node that the grammar allows: tokens, and the chance of the path to each."""
    tokens, chances, chance = list[int](), list[float](), 1.0
    while len(tokens) < limit and (children := children_under(mirrors, seq, node, grammar)):
        node, token, share = children[0]
        grammar = grammar.after(token)
        chance *= share
        tokens.append(token)
        chances.append(chance)
    return tokens, chances


def num_forced(grammar: GrammarView, limit: int) -> int:
    """How many of the next tokens the grammar forces, at most `limit`."""
    count = 0
    while count < limit and (only := grammar.only()) is not None:
        grammar = grammar.after(only)
        count += 1
    return count


def num_certain(chances: Sequence[float]) -> int:
    """How many tokens at the start of a path or tree the grammar forces: their chance is exactly 1."""
    count = 0
    while count < len(chances) and chances[count] == 1.0:
        count += 1
    return count


Nodes = tuple[list[int], list[float], list[int]]
"""Tokens, the chance of the path to each, and the index of each one's parent (-1: it follows the text)."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits on the nodes that are offered for one sequence."""

    most: int
    """Largest number of nodes."""
    depth: int
    """Largest number of tokens on a path."""
    least: float
    """A node is offered only if its chance is greater than this."""


def likely_nodes(
    mirrors: Mirrors, seq: int, node: int | None, grammar: GrammarView | None, bounds: TreeLimits
) -> Nodes:
    """The likeliest nodes below `node`, within bounds.

    `node` is None where the draft's tree does not reach: then only tokens that the grammar forces follow.
    """
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
    # At most one of them follows. Calibrated values, or those of a faulty draft, may add up to more than 1.
    total = max(1.0, sum(math.exp(value) for _child, _token, value in children))
    return [(child, token, math.exp(value) / total) for child, token, value in children]


def known_path(mirrors: Mirrors, session: ClientSession | None, limit: int) -> DraftedTokens:
    """The likeliest continuation that the mirror knows, of at most `limit` tokens."""
    # The tree starts after the forced tokens, and here there is no grammar to propose those by.
    if session is None or not session.is_open or session.forced:
        return _NO_PATH
    tokens, chances = mirrors.path(session.seq, min(limit, session.room))
    return DraftedTokens(tokens, chances) if tokens else _NO_PATH


def known_paths(
    mirrors: Mirrors, sessions: Sequence[ClientSession | None], limit: int
) -> list[DraftedTokens]:
    """`known_path` of each session."""
    asked = list[tuple[int, ClientSession]]()
    for place, session in enumerate(sessions):
        if session is not None and session.is_sent and not session.forced:
            asked.append((place, session))
    found = [_NO_PATH] * len(sessions)
    seqs = [session.seq for _place, session in asked]
    rooms = [session.max_len - len(session.tokens) - 1 for _place, session in asked]
    limits = [limit if room >= limit else max(0, room) for room in rooms]
    for (place, _session), (tokens, chances) in zip(asked, mirrors.paths(seqs, limits), strict=True):
        if tokens:
            found[place] = DraftedTokens(tokens, chances)
    return found


def offer(
    mirrors: Mirrors,
    session: ClientSession | None,
    limit: int,
    grammar: GrammarView | None,
    trees: TreeLimits | None,
) -> DraftedTokens:
    """A sequence's path, or its tree if there are bounds for one, as its grammar allows."""
    if session is None or (grammar is None and trees is None):
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
    return DraftedTokens(tokens, chances, simplified(parents), certain).behind(forced)
