"""The draft's side of one sequence: its tokens, its tree and where their keys and values lie.

Keys and values of decided tokens are in the sequence's blocks, those of grown nodes in tree slots. An outcome
moves the accepted path into the blocks; nothing else moves, and nothing is computed again. Knows which rows
to compute and which keys to move. Does not know models or sockets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ssd.attention.inputs import Branches
from ssd.draft.protocol.messages import (
    CREDIT,
    MAX_ID,
    Floats,
    Ints,
    Open,
    TreePart,
    unpack_ints,
)
from ssd.draft.server.session import check_noise, sampling_params
from ssd.kvcache.pool import NODES_PER_TREE
from ssd.ngram import ngram_guess
from ssd.sampling import History, SamplingRow, Tally
from tests.draft.tree.oracle.calibration import Observation
from tests.draft.tree.oracle.tree import BARREN, UNGROWN, Tree


@dataclass(frozen=True, slots=True)
class Move:
    """Nodes that have become text: their keys and values move into the blocks."""

    places: list[int]
    """Tree slots, in the order of the text."""
    start: int
    """The position of the first."""


class Session:
    def __init__(self, opening: Open, *, max_len: int, vocab_size: int = MAX_ID) -> None:
        """`max_len` and `vocab_size` are what both sides can do: what lies beyond is never guessed."""
        self.seq, self.epoch = opening.seq, opening.epoch
        self.tokens: list[int] = unpack_ints(opening.tokens).tolist()
        self.num_computed = 0
        """Leading tokens whose keys and values are in the blocks."""
        self.was_read = False
        """The whole text once was: what it lacks since is what it has gained."""
        self.n = 0
        """Outcomes applied."""
        self.is_out_of_sync = False
        """An outcome is missing: nothing is grown until the sequence is opened again."""
        self.tree = Tree(0, self.tokens[-1])
        self.tree_start = 0
        """The first of the tree's slots."""
        self._free_places = _all_places()
        """Free tree slots; the last is taken first."""
        check_noise(opening.sampling)
        self.params = sampling_params(opening.sampling)
        self._sampling = opening.sampling
        self._prompt = self.tokens[: opening.num_prompt]
        self._tally = Tally(self._prompt) if self.params.penalised else None
        self.vocab_size = vocab_size
        self._max_len = min(max_len, opening.max_len)
        self._max_depth = 2 * opening.lookahead + 1
        self._credit = max(CREDIT, 4 * opening.lookahead)
        self._num_sent = 0
        self._num_arrived = 0
        self._next_id = 1
        self._fresh: list[int] = []
        """Nodes the engine has not been told of."""

    @property
    def is_root_read(self) -> bool:
        return self.num_computed == len(self.tokens)

    @property
    def may_grow(self) -> bool:
        return self._num_sent - self._num_arrived < self._credit and not self.is_out_of_sync

    @property
    def num_grown(self) -> int:
        """Nodes that occupy a tree slot."""
        return NODES_PER_TREE - len(self._free_places)

    def _next_places(self, count: int) -> list[int]:
        """Those that the next nodes will take, in their order."""
        return self._free_places[-1 : -count - 1 : -1]

    def growable(self) -> NDArray[np.bool_]:
        """Which nodes may be processed next. Not the root: that is read as part of the text."""
        tree = self.tree
        depths = tree.relative_depths()
        growable: NDArray[np.bool_] = (
            (np.array(tree.slots) == UNGROWN) & (depths > 0) & (depths <= self._last_depth)
        )
        return growable

    @property
    def _last_depth(self) -> int:
        # The target adds the last token itself, so what follows a node must lie before that.
        return min(self._max_depth, self._max_len - 2 - len(self.tokens))

    def run_after(self, node: int, most: int) -> list[int]:
        """What followed when the text last stood as it would at this node: perhaps it does again."""
        path = self._path_to(node)
        return list(ngram_guess(self.tokens, path, max(0, min(most, self._last_depth - len(path)))))

    def branches(self, nodes: Sequence[int], run: Sequence[int] = ()) -> Branches:
        """How nodes that are about to be processed, and a run behind the first, see what lies before.

        Without nodes the run follows the root.
        """
        tree, root_position = self.tree, len(self.tokens) - 1
        root_depth = tree.depths[tree.root]
        places = self._next_places(len(nodes) + len(run))
        positions = [root_position + tree.depths[node] - root_depth for node in nodes]
        above = [sum(1 << tree.slots[each] for each in tree.ancestors(node)) for node in nodes]
        paths = [seen | 1 << place for seen, place in zip(above, places, strict=False)]
        last, seen = (positions[0], paths[0]) if nodes else (root_position, 0)
        for place in places[len(nodes) :]:
            last, seen = last + 1, seen | 1 << place
            positions.append(last)
            paths.append(seen)
        return Branches(positions, len(self.tokens), self.tree_start, places, paths)

    def grow(self, node: int, tokens: Ints, logprobs: Floats, raws: Floats) -> None:
        """Takes in what may follow a node that has just been processed, or the root."""
        tree = self.tree
        meant = tokens < self.vocab_size
        if not meant.all():
            tokens, logprobs, raws = tokens[meant], logprobs[meant], raws[meant]
        if node != tree.root:
            tree.slots[node] = self._free_places.pop()
        first = tree.size
        ids = range(self._next_id, self._next_id + len(tokens))
        self._next_id += len(tokens)
        tree.graft(node, ids, tokens.tolist(), logprobs.tolist(), raws.tolist())
        for index in range(first, tree.size):
            if tree.tokens[index] in self._sampling.end_ids:
                tree.slots[index] = BARREN
        self._fresh.extend(range(first, tree.size))

    def sampling_row(self, node: int) -> SamplingRow:
        """How the token after a node (or the root) is decided."""
        path = self._path_to(node)
        known = History(self.tokens, len(self._prompt))
        return SamplingRow(
            params=self.params,
            seed=self._sampling.seed,
            position=len(self.tokens) + len(path),
            prompt=self._prompt,
            output=known.followed_by(path) if path else known,
            end_ids=tuple(self._sampling.end_ids),
            bad_word_ids=tuple(map(tuple, self._sampling.bad_word_ids)),
            tally=self._tally,
        )

    def _path_to(self, node: int) -> list[int]:
        """The tokens after the root's, up to and including the node's."""
        tree = self.tree
        if node == tree.root:
            return []
        return [tree.tokens[each] for each in (*reversed(tree.ancestors(node)), node)]

    def observe(self, tokens: Sequence[int]) -> list[Observation]:
        """What an outcome teaches about the tree, before it is applied."""
        if not self.is_root_read:
            return []
        tree, found = self.tree, list[Observation]()
        parents = [tree.root, *tree.walk(tokens)]
        for parent, token in zip(parents, tokens, strict=False):
            children = tree.children(parent)
            if children:
                taken = tree.child(parent, token)
                rank = None if taken is None else taken - children.start
                raws = np.array(tree.raws[children.start : children.stop], dtype=np.float32)
                found.append(Observation(raws, rank))
        return found

    def advance(self, n: int, tokens: Sequence[int], *, has_room: bool = True) -> Move | None:
        """Applies the n-th outcome: the root moves along the tokens, lost branches go.

        Without a free block nothing is kept: the text is read again.
        """
        if n <= self.n or self.is_out_of_sync:
            return None
        if n > self.n + 1:
            self.is_out_of_sync = True
            return None
        self.n = n
        self._fresh.clear()
        tree, start = self.tree, len(self.tokens)
        path = tree.walk(tokens) if self.is_root_read and has_room else []
        # Of the path only the last node can be ungrown: the others' children are known.
        places = [tree.slots[node] for node in path if tree.slots[node] >= 0]
        self.num_computed += len(places)
        self.tokens.extend(tokens)
        if len(path) < len(tokens):
            self._replant()
        else:
            tree.move_root(path[-1])
            self._drop_lost()
        return Move(places, start) if places else None

    def note_arrival(self, num_frames: int) -> None:
        self._num_arrived = max(self._num_arrived, num_frames)

    def frame(self) -> TreePart | None:
        """The nodes that are new since the last frame."""
        return self._part(full=False) if self._fresh else None

    def full_frame(self) -> TreePart:
        self._fresh = list(range(1, self.tree.size))
        return self._part(full=True)

    def check_integrity(self) -> None:
        self.tree.check_integrity()
        taken = [slot for slot in self.tree.slots[1:] if slot >= 0]
        if sorted(taken + self._free_places) != sorted(_all_places()):
            raise RuntimeError("the tree slots are not those of the grown nodes and the free ones")
        if not self.is_root_read and self.tree.size > 1:
            raise RuntimeError("a tree stands on a root that was not read")

    def _replant(self) -> None:
        self.tree.replant(self._next_id, self.tokens[-1])
        self._next_id += 1
        self._free_places = _all_places()

    def _drop_lost(self) -> None:
        """Compacts the tree; the places of nodes that are gone, or text now, are free again."""
        tree = self.tree
        tree.compact()
        tree.slots[tree.root] = BARREN
        taken = {slot for slot in tree.slots if slot >= 0}
        self._free_places = [place for place in _all_places() if place not in taken]

    def _part(self, *, full: bool) -> TreePart:
        tree, fresh = self.tree, self._fresh
        self._fresh = []
        self._num_sent += 1
        parents = [tree.ids[tree.parents[node]] for node in fresh]
        return TreePart(
            seq=self.seq,
            epoch=self.epoch,
            number=self._num_sent - 1,
            n=self.n,
            root=tree.root_id,
            length=len(self.tokens),
            ids=[tree.ids[node] for node in fresh],
            parents=parents,
            tokens=[tree.tokens[node] for node in fresh],
            logprobs=[tree.logprobs[node] for node in fresh],
            full=full,
        )


def _all_places() -> list[int]:
    """All tree slots, the first one last."""
    return list(range(NODES_PER_TREE - 1, -1, -1))
