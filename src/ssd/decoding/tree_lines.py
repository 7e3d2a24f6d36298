"""Draws a verified tree as lines of text, for terminals and traces."""

from collections.abc import Callable
from dataclasses import dataclass

from ssd.decoding.rows import VerifiedTree

TextOf = Callable[[int], str]
"""The text of a token."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    before: str
    """The branches left of the node."""
    text: str
    is_accepted: bool

    def __str__(self) -> str:
        return f"{self.before}{'●' if self.is_accepted else '○'} {self.text}"


def lines_of(tree: VerifiedTree, text_of: TextOf) -> list[NodeLine]:
    """A line for each node, children below their parent, in their order in the tree."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    accepted, found = set(tree.branch), list[NodeLine]()
    # No recursion: a path may be as long as the tree.
    waiting = _siblings(children.get(-1, []), "")
    while waiting:
        node, before, below = waiting.pop()
        # Escape: a newline or a tab in a token would break the drawing.
        found.append(NodeLine(before, repr(text_of(tree.tokens[node]))[1:-1], node in accepted))
        waiting += _siblings(children.get(node, []), below)
    return found


def _siblings(nodes: list[int], above: str) -> list[tuple[int, str, str]]:
    """Each node with the branches left of it and of its children, in reverse order, for a stack."""
    lasts = [node == nodes[-1] for node in nodes]
    rows = zip(nodes, lasts, strict=True)
    return [
        (node, f"{above}{'└' if last else '├'}", f"{above}{' ' if last else '│'}") for node, last in rows
    ][::-1]
