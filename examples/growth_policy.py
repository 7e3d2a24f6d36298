"""Writes a growth policy and compares it with the default: see docs/tutorial-policy.md.

    python examples/growth_policy.py
    python examples/growth_policy.py --penalty 5

Tables, selection and policies are those of the draft service (`ssd.draft.tree`). In place of the draft model
there is a table of made-up chances, so that a tree fits on a page.
"""

import argparse
import math
from collections.abc import Iterator

import numpy as np

from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.arrays import Array, Arrays, NumpyArrays
from ssd.draft.tree.children import ChosenChildren
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.select import ByValue, Distances, GrowthPolicy
from ssd.draft.tree.tables import Constants, Shape, Tables

TEXT = ["she", "saw", "the"]
CHANCES = {
    "the": {"cat": 0.6, "dog": 0.3, "bird": 0.1},
    "cat": {"sat": 0.8, "ran": 0.2},
    "dog": {"ran": 0.7, "sat": 0.3},
    "bird": {"sang": 0.9, "flew": 0.1},
    "sat": {"down": 0.9, "still": 0.1},
    "ran": {"away": 0.8, "home": 0.2},
    "sang": {"again": 1.0},
    "down": {"again": 0.7, "there": 0.3},
    "away": {"again": 0.6, "there": 0.4},
}
"""What follows a word, and how likely."""
WORDS = sorted({*TEXT, *CHANCES, *(word for found in CHANCES.values() for word in found)})
STEPS, WIDTH, CHILDREN = 4, 2, 3


class ByDiscountedValue:
    """Likely nodes first, but each further token of a path costs `penalty`: the tree grows wider."""

    keeps_partings = False

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def of(self, xp: Arrays, tables: Tables, known: Constants) -> Distances:
        root = tables.length - 1
        depth = tables.position + 1 - root[:, None]
        return xp.real(abs(tables.child_value) + self.penalty * depth[:, :, None]), None


def processed(policy: GrowthPolicy) -> list[list[str]]:
    """The paths that the draft processes in each of STEPS steps."""
    shape = Shape(sequences=1, width=WIDTH, slots=STEPS * WIDTH, children=CHILDREN)
    forest = Forest(NumpyArrays(), shape, policy)
    open_text(forest)
    paths, steps = dict[tuple[int, int], str](), list[list[str]]()
    for left in range(STEPS, -1, -1):
        forest.tables.is_live[1], forest.tables.steps_left[1] = True, max(1, left)
        forest.select()
        forest.attach(children_of(forest.rows.token))
        steps.append(list(note_paths(forest, paths)))
    return steps[1:]


def note_paths(forest: Forest, paths: dict[tuple[int, int], str]) -> Iterator[str]:
    """The paths of the rows that were processed. Adds those of their children, by family and rank."""
    rows = forest.rows
    for slot, family, rank in zip(rows.slot.tolist(), rows.family.tolist(), rows.rank.tolist(), strict=True):
        path = paths.get((family, rank), "")
        if path:
            yield path
        for place, word in enumerate(forest.tables.child_token[1, slot].tolist()):
            if word >= 0:
                paths[slot, place] = f"{path} {WORDS[word]}".strip()


def open_text(forest: Forest) -> None:
    """All of the text is read but its last token: the first step reads that and finds its children."""
    tokens = [WORDS.index(word) for word in TEXT]
    opening = Open(0, 1, pack_ints(tokens), len(tokens), 1000, 8, Sampling(seed=0))
    session = DraftSession(opening, max_len=1000, vocab_size=len(WORDS), row=1)
    session.write_to(forest, num_computed=len(tokens) - 1)


def children_of(tokens: Array) -> ChosenChildren:
    """The next words of each row and their log-probabilities; −inf where there are fewer."""
    words, logprobs = np.zeros((len(tokens), CHILDREN), np.int64), np.full((len(tokens), CHILDREN), -np.inf)
    for row, token in enumerate(tokens):
        for rank, (word, chance) in enumerate(CHANCES.get(WORDS[token], {}).items()):
            words[row, rank], logprobs[row, rank] = WORDS.index(word), math.log(chance)
    return words, logprobs.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--penalty", type=float, default=1.0)
    penalty = parser.parse_args().penalty
    policies: dict[str, GrowthPolicy] = {
        "ByValue()": ByValue(),
        f"ByDiscountedValue({penalty})": ByDiscountedValue(penalty),
    }
    for name, policy in policies.items():
        print(name)
        for number, paths in enumerate(processed(policy), 1):
            print(f"  step {number}: {', '.join(paths)}")


if __name__ == "__main__":
    main()
