"""A verified tree as lines of text, for a terminal and for traces: nodes and their texts, no colours."""

from collections.abc import Callable
from dataclasses import dataclass

from ssd.decoding.rows import VerifiedTree

TextOf = Callable[[int], str]
"""The text of a token."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    before: str
    """What leads to the node."""
    text: str
    is_accepted: bool

    def __str__(self) -> str:
        return f"{self.before}{'●' if self.is_accepted else '○'} {self.text}"


def lines_of(tree: VerifiedTree, text_of: TextOf) -> list[NodeLine]:
    """A line for each node, children below their parent, in the order they were offered."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    accepted, found = set(tree.branch), list[NodeLine]()
    # Without recursion: a path may be as long as a tree is large.
    waiting = _siblings(children.get(-1, []), "")
    while waiting:
        node, before, below = waiting.pop()
        # A line's end or a tab in a token would break the drawing.
        found.append(NodeLine(before, repr(text_of(tree.tokens[node]))[1:-1], node in accepted))
        waiting += _siblings(children.get(node, []), below)
    return found


def _siblings(nodes: list[int], above: str) -> list[tuple[int, str, str]]:
    """Each with what leads to it and what leads past it to its children, the first one last."""
    lasts = [node == nodes[-1] for node in nodes]
    rows = zip(nodes, lasts, strict=True)
    return [
        (node, f"{above}{'└' if last else '├'}", f"{above}{' ' if last else '│'}") for node, last in rows
    ][::-1]
