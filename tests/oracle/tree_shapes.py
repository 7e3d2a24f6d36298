"""Trees that a draft may offer, made from the truth: helpful, useless and hostile ones.

A shape is given the tokens that will come and makes nodes of them; whoever verifies must take the true path
as far as the tree has it, and no other. Nodes come in any order that has parents first.
"""

import random
from collections.abc import Callable, Sequence

from ssd.decoding.rows import Speculation
from ssd.draft.client.proposals import simplified

Shape = Callable[["Growing", Sequence[int]], None]


class Growing:
    """A tree while it is put together."""

    def __init__(self, drawn: random.Random, draw_token: Callable[[], int]) -> None:
        self.random = drawn
        self._draw_token = draw_token
        self._nodes: list[tuple[int, int]] = []

    def add(self, parent: int, token: int) -> int:
        self._nodes.append((parent, token))
        return len(self._nodes) - 1

    def add_path(self, parent: int, tokens: Sequence[int]) -> int:
        for token in tokens:
            parent = self.add(parent, token)
        return parent

    def wrong(self, right: int | None = None) -> int:
        while (token := self._draw_token()) == right:
            pass
        return token

    def speculation(self) -> Speculation:
        """In a random order in which parents come first."""
        order, ready = list[int](), [i for i, (parent, _) in enumerate(self._nodes) if parent < 0]
        while ready:
            node = ready.pop(self.random.randrange(len(ready)))
            order.append(node)
            ready += [i for i, (parent, _) in enumerate(self._nodes) if parent == node]
        place = {node: index for index, node in enumerate(order)} | {-1: -1}
        parents = [place[self._nodes[node][0]] for node in order]
        return Speculation(tuple(self._nodes[node][1] for node in order), parents=simplified(parents))


def hidden(tree: Growing, truth: Sequence[int]) -> None:
    """The true path among wrong siblings, each of which is followed by what is true one place later."""
    end = -1
    for place, token in enumerate(truth[: tree.random.randint(1, 6)]):
        for _ in range(tree.random.randint(0, 3)):
            tree.add_path(tree.add(end, tree.wrong(token)), truth[place + 1 : place + 3])
        end = tree.add(end, token)


def wide(tree: Growing, truth: Sequence[int]) -> None:
    """Many first tokens, with the right one or without it, each followed by what would be right."""
    first = [tree.wrong(truth[0] if truth else None) for _ in range(20)]
    if tree.random.random() < 0.7:
        first += truth[:1]
    for token in first:
        tree.add_path(tree.add(-1, token), truth[1 : 1 + tree.random.randint(0, 2)])


def deep(tree: Growing, truth: Sequence[int]) -> None:
    """A long path that others leave on the way, and which may leave the truth itself."""
    path = [token if tree.random.random() < 0.9 else tree.wrong(token) for token in truth[:14]]
    end = -1
    for place, token in enumerate(path):
        if tree.random.random() < 0.4:
            tree.add_path(end, [tree.wrong(token), *truth[place + 1 : place + 4]])
        end = tree.add(end, token)


def twins(tree: Growing, truth: Sequence[int]) -> None:
    """The same token twice under one parent: either may be taken, and only what follows it."""
    end = -1
    for token in truth[:4]:
        both = [tree.add(end, token), tree.add(end, token)]
        end = tree.random.choice(both)
        tree.add(both[0] if end == both[1] else both[1], tree.wrong())


def late(tree: Growing, truth: Sequence[int]) -> None:
    """What is true one place later, and one place earlier."""
    tree.add_path(-1, truth[1:5])
    tree.add_path(-1, [*truth[:1], *truth[:4]])


def hostile(tree: Growing, truth: Sequence[int]) -> None:
    """Any tokens anywhere."""
    for node in range(tree.random.randint(2, 30)):
        tree.add(tree.random.randrange(-1, node), tree.wrong())


def huge(tree: Growing, truth: Sequence[int]) -> None:
    """More than a sequence may have."""
    hidden(tree, truth)
    for _ in range(100):
        tree.add(-1, tree.wrong())


def chain(tree: Growing, truth: Sequence[int]) -> None:
    tree.add_path(-1, [token if tree.random.random() < 0.8 else tree.wrong() for token in truth[:5]])


def nothing(tree: Growing, truth: Sequence[int]) -> None:
    """No guess."""


SHAPES: tuple[Shape, ...] = (hidden, hidden, wide, deep, deep, twins, late, hostile, huge, chain, nothing)


def some_speculation(
    drawn: random.Random, truth: Sequence[int], draw_token: Callable[[], int]
) -> Speculation:
    tree = Growing(drawn, draw_token)
    drawn.choice(SHAPES)(tree, truth)
    return tree.speculation()
