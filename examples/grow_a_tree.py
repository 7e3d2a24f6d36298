"""Grows a rolling tree step by step, with the classes of the engine: see docs/tutorial.md.

    python examples/grow_a_tree.py --pictures docs/pictures        # needs matplotlib

Two tiny models of a nursery rhyme. The draft counts which word follows a word; the target counts which
word follows two words, and has read a verse more. Both are tables, so that everything fits a picture. Tree
and policy are those that `ssd plan` runs, frames and mirror those that serve real models. Nothing here waits
for anything: how many steps the draft gets done while the target verifies is written down in ROUNDS.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ssd.draft.messages import Nodes, TreePart
from ssd.draft.mirrors import Mirrors
from ssd.planning.growth import growth_policy
from ssd.planning.tree import UNGROWN, Tree

HOUSE = "this is the house that jack built"
MALT = "this is the malt that lay in the house that jack built"
RAT = "this is the rat that ate the malt that lay in the house that jack built"
CAT = "this is the cat that killed the rat that ate the malt that lay in the house that jack built"
PROMPT = "this is the rat that ate the"
LOOKAHEAD, WIDTH, CHILDREN = 4, 2, 3
DEEPEST = 2 * LOOKAHEAD + 1
GROWN = 0
"""Slot of a node that was processed; which slot does not matter here."""
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


class Draft:
    """The draft's side: a text, the tree of what may follow, and a model that says what may follow a node."""

    def __init__(self, text: Sequence[str]) -> None:
        self._tokens = [IDS[word] for word in text]
        self.tree = Tree(0, self._tokens[-1])
        self._policy = growth_policy("value", width=WIDTH)
        self._next_id, self._num_outcomes, self._num_frames = 1, 0, 0
        self._fresh: list[int] = []
        """Nodes that the engine has not been told of."""

    def step(self) -> list[str]:
        """Processes the most valuable nodes of the tree; a real draft does it in one forward."""
        tree = self.tree
        if not tree.num_children[tree.root]:
            # The text is read up to the root, and so it is known what may follow it.
            self._grow(tree.root)
            return [WORDS[tree.tokens[tree.root]]]
        depths = tree.relative_depths()
        growable = np.flatnonzero((np.array(tree.slots) == UNGROWN) & (depths > 0) & (depths <= DEEPEST))
        values = self._policy.priorities(tree)[growable]
        chosen = [int(growable[i]) for i in np.argsort(-values, kind="stable")[:WIDTH]]
        for node in chosen:
            self._grow(node)
        return [WORDS[tree.tokens[node]] for node in chosen]

    def advance(self, tokens: Sequence[int]) -> None:
        """The root moves along an outcome; where that was not foreseen, the tree begins anew."""
        tree, path = self.tree, self.tree.walk(tokens)
        self._tokens.extend(tokens)
        self._num_outcomes += 1
        self._fresh = []
        if len(path) == len(tokens):
            tree.move_root(path[-1])
            tree.compact()
        else:
            tree.replant(self._next_id, tokens[-1])
            self._next_id += 1
        tree.check_integrity()

    def frame(self) -> Nodes | None:
        """What the engine has not been told of yet."""
        tree, fresh = self.tree, self._fresh
        if not fresh:
            return None
        part = TreePart(
            seq=0,
            epoch=1,
            number=self._num_frames,
            n=self._num_outcomes,
            root=tree.root_id,
            length=len(self._tokens),
            ids=[tree.ids[node] for node in fresh],
            parents=[tree.ids[tree.parents[node]] for node in fresh],
            tokens=[tree.tokens[node] for node in fresh],
            logprobs=[tree.logprobs[node] for node in fresh],
        )
        self._fresh = []
        self._num_frames += 1
        return Nodes.of([part])

    def _grow(self, node: int) -> None:
        tree, first = self.tree, self.tree.size
        found = DRAFT.chances([WORDS[tree.tokens[node]]])[:CHILDREN]
        logprobs = [float(np.float32(math.log(chance))) for _, chance in found]
        tree.graft(
            node, range(self._next_id, self._next_id + len(found)), [IDS[each] for each, _ in found], logprobs
        )
        self._next_id += len(found)
        tree.slots[node] = GROWN
        self._fresh += range(first, tree.size)


def verify(text: Sequence[str], speculation: Sequence[str]) -> list[str]:
    """The target's outcome: the drafted words it would have written itself, and its own next one."""
    outcome: list[str] = []
    for drafted in (*speculation, None):
        own = TARGET.chances([*text, *outcome])[0][0]
        outcome.append(own)
        if own != drafted:
            break
    return outcome


def story() -> Iterator[tuple[str, Tree, list[int]]]:
    """What happens, sentence by sentence, with the draft's tree as it is then and the path in use."""
    text = PROMPT.split()
    draft, mirrors = Draft(text), Mirrors(1)
    mirrors.open(0, epoch=1, length=len(text))
    draft.step()
    _send(draft, mirrors)
    yield f"text: {PROMPT} | root: {text[-1]!r}, read; its children are known", draft.tree, []
    for number, num_steps in enumerate(ROUNDS, 1):
        tokens, chances = mirrors.path(0, LOOKAHEAD)
        speculation = [WORDS[token] for token in tokens]
        path = draft.tree.walk(tokens)
        said = " ".join(f"{word} ({chance:.2f})" for word, chance in zip(speculation, chances, strict=True))
        yield f"round {number} | speculation: {said or 'none'}", draft.tree, path
        for _ in range(num_steps):
            grown = draft.step()
            _send(draft, mirrors)
            yield (
                f"  while the target verifies, the draft grows: {', '.join(grown)}",
                draft.tree,
                path,
            )
        outcome = verify(text, speculation)
        text += outcome
        (knowledge,) = mirrors.advance([0], [[IDS[word] for word in outcome]])
        draft.advance([IDS[word] for word in outcome])
        accepted = f"{len(outcome) - 1} of {len(speculation)} accepted"
        yield f"  outcome: {' '.join(outcome)} ({accepted}) | {knowledge.value}", draft.tree, []


def _send(draft: Draft, mirrors: Mirrors) -> None:
    frame = draft.frame()
    if frame is not None:
        mirrors.take(frame)


def picture(tree: Tree, path: Sequence[int], title: str, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams.update({"svg.hashsalt": "ssd", "svg.fonttype": "none"})
    places = _places(tree)
    rows = max((y for _, y in places.values()), default=0.0) + 1
    figure, axes = pyplot.subplots(figsize=(9, 1.0 + 0.55 * rows))
    for node, (x, y) in places.items():
        if node != tree.root:
            above = places[tree.parents[node]]
            is_used = node in path
            axes.plot([above[0], x], [above[1], y], color="tab:orange" if is_used else "0.6", zorder=1)
        _draw_node(axes, tree, node, (x, y))
    axes.set_title(title.strip(), loc="left", fontsize=9)
    axes.set_xlim(-0.3, max(x for x, _ in places.values()) + 1.2)
    axes.set_ylim(rows - 0.3, -0.7)
    axes.axis("off")
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def _draw_node(axes: Any, tree: Tree, node: int, place: tuple[float, float]) -> None:
    is_grown = bool(tree.num_children[node])
    colour = "black" if node == tree.root else "tab:blue" if is_grown else "white"
    axes.scatter(*place, s=70, color=colour, edgecolor="black" if node == tree.root else "tab:blue", zorder=2)
    chance = math.exp(tree.values[node] - tree.values[tree.root])
    label = WORDS[tree.tokens[node]] + ("" if node == tree.root else f" {chance:.2f}")
    axes.annotate(label, place, xytext=(-3, 7), textcoords="offset points", fontsize=8)


def _places(tree: Tree) -> dict[int, tuple[float, float]]:
    """Depth to the right; each leaf a line of its own."""
    places: dict[int, tuple[float, float]] = {}
    next_line = 0.0

    def place(node: int, depth: int) -> float:
        nonlocal next_line
        below = [place(child, depth + 1) for child in tree.children(node)]
        if not below:
            below, next_line = [next_line], next_line + 1
        places[node] = (float(depth), below[0])
        return below[0]

    place(tree.root, 0)
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="folder for tree-01.svg and others")
    folder = parser.parse_args().pictures
    for number, (sentence, tree, path) in enumerate(story(), 1):
        print(f"{number:2} {sentence}")
        if folder is not None and number in PICTURES:
            folder.mkdir(parents=True, exist_ok=True)
            picture(tree, path, f"{number}: {sentence.strip()}", folder / f"tree-{number:02}.svg")


if __name__ == "__main__":
    main()
