"""Grows a rolling tree step by step: see docs/tutorial.md.

    python examples/grow_a_tree.py --pictures docs/pictures        # needs matplotlib

Two tiny models of a nursery rhyme. The draft counts which word follows a word; the target counts which
word follows two words, and has read a verse more. Both are tables, so that everything fits a picture. Frames
and mirror are those that serve real models. Nothing here waits for anything: how many steps the draft gets
done while the target verifies is written down in ROUNDS.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ssd.draft.client.mirrors import Mirrors
from ssd.draft.protocol.messages import Nodes, TreePart

HOUSE = "this is the house that jack built"
MALT = "this is the malt that lay in the house that jack built"
RAT = "this is the rat that ate the malt that lay in the house that jack built"
CAT = "this is the cat that killed the rat that ate the malt that lay in the house that jack built"
PROMPT = "this is the rat that ate the"
LOOKAHEAD, WIDTH, CHILDREN = 4, 2, 3
DEEPEST = 2 * LOOKAHEAD + 1
ROUNDS = (3, 2, 1, 4, 3, 1, 1, 2)
"""Draft steps during each verification."""
PICTURES = (1, 3, 5, 6, 13, 24, 27)
"""Sentences of the story that docs/tutorial.md shows."""

WORDS = sorted(set(CAT.split()))
IDS = {word: number for number, word in enumerate(WORDS)}


class CountingModel:
    """How often a word followed the last `order` words of a text; shorter ones where these are new."""

    def __init__(self, verses: Sequence[str], order: int) -> None:
        words = " ".join(verses).split()
        self._order = order
        self._followers = {
            (length, tuple(words[at - length : at])): Counter[str]()
            for length in range(1, order + 1)
            for at in range(length, len(words))
        }
        for (length, before), found in self._followers.items():
            found.update(
                words[at] for at in range(length, len(words)) if tuple(words[at - length : at]) == before
            )

    def chances(self, text: Sequence[str]) -> list[tuple[str, float]]:
        """Of the next word, likeliest first; ties go to the earlier word of the alphabet."""
        for length in range(self._order, 0, -1):
            found = self._followers.get((length, tuple(text[-length:])))
            if found:
                ranked = sorted(found.items(), key=lambda each: (-each[1], each[0]))
                return [(word, count / found.total()) for word, count in ranked]
        return []


TARGET = CountingModel((HOUSE, MALT, RAT, CAT), order=2)
DRAFT = CountingModel((HOUSE, MALT, RAT), order=1)


@dataclass(eq=False)
class Node:
    """A token that may follow its parent."""

    id: int
    token: int
    parent: "Node | None" = None
    logprob: float = 0.0
    """The logarithm of its chance, once its parent was written."""
    children: list["Node"] = field(default_factory=list)
    """Likeliest first; empty until the draft has processed the node."""

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def value(self) -> float:
        """The logarithm of the chance that the text runs through this node."""
        return 0.0 if self.parent is None else self.parent.value + self.logprob

    def descendants(self) -> Iterator["Node"]:
        for child in self.children:
            yield child
            yield from child.descendants()

    def walk(self, tokens: Sequence[int]) -> list["Node"]:
        """The nodes along the tokens that follow this one, as far as they are known."""
        path: list[Node] = []
        for token in tokens:
            children = (path[-1] if path else self).children
            found = [child for child in children if child.token == token]
            if not found:
                break
            path += found
        return path


class Draft:
    """The draft's side: a text, the tree of what may follow, and a model that says what may follow a node."""

    def __init__(self, text: Sequence[str]) -> None:
        self._tokens = [IDS[word] for word in text]
        self.root = Node(0, self._tokens[-1])
        self._next_id, self._num_outcomes, self._num_frames = 1, 0, 0
        self._fresh: list[Node] = []
        """Nodes that the engine has not been told of."""

    def step(self) -> list[str]:
        """Processes the most valuable nodes of the tree; a real draft does it in one forward."""
        if not self.root.children:
            # The text is read up to the root, and so it is known what may follow it.
            self._grow(self.root)
            return [WORDS[self.root.token]]
        growable = [each for each in self.root.descendants() if not each.children and each.depth <= DEEPEST]
        chosen = sorted(growable, key=lambda each: (-np.float32(each.value), each.id))[:WIDTH]
        for node in chosen:
            self._grow(node)
        return [WORDS[node.token] for node in chosen]

    def advance(self, tokens: Sequence[int]) -> None:
        """The root moves along an outcome; where that was not foreseen, the tree begins anew."""
        path = self.root.walk(tokens)
        self._tokens.extend(tokens)
        self._num_outcomes += 1
        self._fresh = []
        if len(path) == len(tokens):
            self.root = path[-1]
            self.root.parent = None
        else:
            self.root = Node(self._next_id, tokens[-1])
            self._next_id += 1

    def frame(self) -> Nodes | None:
        """What the engine has not been told of yet."""
        fresh = self._fresh
        if not fresh:
            return None
        part = TreePart(
            seq=0,
            epoch=1,
            number=self._num_frames,
            n=self._num_outcomes,
            root=self.root.id,
            length=len(self._tokens),
            ids=[node.id for node in fresh],
            parents=[node.parent.id for node in fresh if node.parent is not None],
            tokens=[node.token for node in fresh],
            logprobs=[node.logprob for node in fresh],
        )
        self._fresh = []
        self._num_frames += 1
        return Nodes.of([part])

    def _grow(self, node: Node) -> None:
        for word, chance in DRAFT.chances([WORDS[node.token]])[:CHILDREN]:
            child = Node(self._next_id, IDS[word], node, float(np.float32(math.log(chance))))
            node.children.append(child)
            self._fresh.append(child)
            self._next_id += 1


def verify(text: Sequence[str], speculation: Sequence[str]) -> list[str]:
    """The target's outcome: the drafted words it would have written itself, and its own next one."""
    outcome: list[str] = []
    for drafted in (*speculation, None):
        own = TARGET.chances([*text, *outcome])[0][0]
        outcome.append(own)
        if own != drafted:
            break
    return outcome


def story() -> Iterator[tuple[str, Node, list[Node]]]:
    """What happens, sentence by sentence, with the root of the draft's tree then and the path in use."""
    text = PROMPT.split()
    draft, mirrors = Draft(text), Mirrors(1)
    mirrors.open(0, epoch=1, length=len(text))
    draft.step()
    _send(draft, mirrors)
    yield f"text: {PROMPT} | root: {text[-1]!r}, read; its children are known", draft.root, []
    for number, num_steps in enumerate(ROUNDS, 1):
        tokens, chances = mirrors.path(0, LOOKAHEAD)
        speculation = [WORDS[token] for token in tokens]
        path = draft.root.walk(tokens)
        said = " ".join(f"{word} ({chance:.2f})" for word, chance in zip(speculation, chances, strict=True))
        yield f"round {number} | speculation: {said or 'none'}", draft.root, path
        for _ in range(num_steps):
            grown = draft.step()
            _send(draft, mirrors)
            yield (
                f"  while the target verifies, the draft grows: {', '.join(grown)}",
                draft.root,
                path,
            )
        outcome = verify(text, speculation)
        text += outcome
        tokens = [IDS[word] for word in outcome]
        (knowledge,) = mirrors.advance(np.array([0]), np.array([len(tokens)]), np.array(tokens, np.int32))
        draft.advance(tokens)
        accepted = f"{len(outcome) - 1} of {len(speculation)} accepted"
        yield f"  outcome: {' '.join(outcome)} ({accepted}) | {knowledge.value}", draft.root, []


def _send(draft: Draft, mirrors: Mirrors) -> None:
    frame = draft.frame()
    if frame is not None:
        mirrors.take(frame)


def picture(root: Node, path: Sequence[Node], title: str, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams.update({"svg.hashsalt": "ssd", "svg.fonttype": "none"})
    places = _places(root)
    rows = max((y for _, y in places.values()), default=0.0) + 1
    figure, axes = pyplot.subplots(figsize=(9, 1.0 + 0.55 * rows))
    for node, (x, y) in places.items():
        if node.parent is not None:
            above = places[node.parent]
            axes.plot([above[0], x], [above[1], y], color="tab:orange" if node in path else "0.6", zorder=1)
        _draw_node(axes, node, (x, y))
    axes.set_title(title.strip(), loc="left", fontsize=9)
    axes.set_xlim(-0.3, max(x for x, _ in places.values()) + 1.2)
    axes.set_ylim(rows - 0.3, -0.7)
    axes.axis("off")
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def _draw_node(axes: Any, node: Node, place: tuple[float, float]) -> None:
    is_root = node.parent is None
    colour = "black" if is_root else "tab:blue" if node.children else "white"
    axes.scatter(*place, s=70, color=colour, edgecolor="black" if is_root else "tab:blue", zorder=2)
    label = WORDS[node.token] + ("" if is_root else f" {math.exp(node.value):.2f}")
    axes.annotate(label, place, xytext=(-3, 7), textcoords="offset points", fontsize=8)


def _places(root: Node) -> dict[Node, tuple[float, float]]:
    """Depth to the right; each leaf a line of its own."""
    places: dict[Node, tuple[float, float]] = {}
    next_line = 0.0

    def place(node: Node) -> float:
        nonlocal next_line
        below = [place(child) for child in node.children]
        if not below:
            below, next_line = [next_line], next_line + 1
        places[node] = (float(node.depth), below[0])
        return below[0]

    place(root)
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="folder for tree-01.svg and others")
    folder = parser.parse_args().pictures
    for number, (sentence, root, path) in enumerate(story(), 1):
        print(f"{number:2} {sentence}")
        if folder is not None and number in PICTURES:
            folder.mkdir(parents=True, exist_ok=True)
            picture(root, path, f"{number}: {sentence.strip()}", folder / f"tree-{number:02}.svg")


if __name__ == "__main__":
    main()
