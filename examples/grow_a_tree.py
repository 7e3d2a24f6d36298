"""Grows a rolling tree step by step, with the classes of the engine: see docs/tutorial.md.

    python examples/grow_a_tree.py --pictures docs/pictures        # needs matplotlib

Two tiny models of a nursery rhyme. The draft counts which word follows a word; the target counts which
word follows two words, and has read a verse more. Both are tables, so that everything fits a picture; tree,
session and mirror are those that serve real models. Nothing here waits for anything: how many steps the
draft gets done while the target verifies is written down in ROUNDS.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ssd.draft.growth import growth_policy
from ssd.draft.messages import Nodes, Open, Sampling, pack_ints
from ssd.draft.mirrors import Mirrors
from ssd.draft.session import Session
from ssd.draft.tree import Tree

HOUSE = "this is the house that jack built"
MALT = "this is the malt that lay in the house that jack built"
RAT = "this is the rat that ate the malt that lay in the house that jack built"
CAT = "this is the cat that killed the rat that ate the malt that lay in the house that jack built"
PROMPT = "this is the rat that ate the"
LOOKAHEAD, WIDTH, CHILDREN = 4, 2, 3
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
    """The draft's side: a session, and a model that says what may follow a node."""

    def __init__(self, text: Sequence[str]) -> None:
        tokens = [IDS[word] for word in text]
        opening = Open(0, 1, pack_ints(tokens), len(tokens), 1000, LOOKAHEAD, Sampling(seed=0))
        self.session = Session(opening, max_len=1000)
        self._policy = growth_policy("value", width=WIDTH)

    def read(self) -> None:
        """Reads the text up to the root, and so knows what may follow it."""
        self.session.num_read = len(self.session.tokens)
        self._grow(self.session.tree.root)

    def step(self) -> list[str]:
        """Processes the most valuable nodes of the tree; a real draft does it in one forward."""
        session = self.session
        if not session.is_root_read or not session.tree.num_children[session.tree.root]:
            self.read()
            return [WORDS[session.tree.tokens[session.tree.root]]]
        growable = np.flatnonzero(session.growable())
        values = self._policy.priorities(session.tree)[growable]
        chosen = [int(growable[i]) for i in np.argsort(-values, kind="stable")[:WIDTH]]
        for node in chosen:
            self._grow(node)
        return [WORDS[session.tree.tokens[node]] for node in chosen]

    def frame(self) -> Nodes | None:
        """What the engine has not been told of yet."""
        part = self.session.frame()
        return None if part is None else Nodes.of([part])

    def _grow(self, node: int) -> None:
        tree = self.session.tree
        word = WORDS[tree.tokens[node]]
        found = DRAFT.chances([word])[:CHILDREN]
        tokens = np.array([IDS[each] for each, _ in found], dtype=np.int32)
        logprobs = np.array([math.log(chance) for _, chance in found], dtype=np.float32)
        self.session.grow(node, tokens, logprobs, logprobs)


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
    draft.read()
    _send(draft, mirrors)
    yield f"text: {PROMPT} | root: {text[-1]!r}, read; its children are known", draft.session.tree, []
    for n, num_steps in enumerate(ROUNDS, 1):
        tokens, chances = mirrors.path(0, LOOKAHEAD)
        speculation = [WORDS[token] for token in tokens]
        path = draft.session.tree.walk(tokens)
        said = " ".join(f"{word} ({chance:.2f})" for word, chance in zip(speculation, chances, strict=True))
        yield f"round {n} | speculation: {said or 'none'}", draft.session.tree, path
        for _ in range(num_steps):
            grown = draft.step()
            _send(draft, mirrors)
            yield (
                f"  while the target verifies, the draft grows: {', '.join(grown)}",
                draft.session.tree,
                path,
            )
        outcome = verify(text, speculation)
        text += outcome
        (knowledge,) = mirrors.advance([0], [[IDS[word] for word in outcome]])
        draft.session.advance(n, [IDS[word] for word in outcome])
        draft.session.check_integrity()
        accepted = f"{len(outcome) - 1} of {len(speculation)} accepted"
        yield f"  outcome: {' '.join(outcome)} ({accepted}) | {knowledge.value}", draft.session.tree, []


def _send(draft: Draft, mirrors: Mirrors) -> None:
    frame = draft.frame()
    if frame is not None:
        mirrors.take(frame)
        draft.session.note_arrival(int(mirrors.num_frames[0]))


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
