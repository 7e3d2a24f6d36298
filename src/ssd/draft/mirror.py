"""The engine's copy of one sequence's rolling tree, kept in step by numbers, not by timing.

Frames of nodes arrive when they arrive; verifications end when they end. The mirror advances
its root the moment an outcome is there, without asking. A frame says which outcomes the draft
had applied when it was made (`n`) and how many frames came before it (`number`): from these the
mirror knows what to graft, what to drop and when something is missing. No sockets, no clock.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from ssd.draft.messages import Nodes, listed_floats, listed_ints, unpack_floats, unpack_ints
from ssd.draft.tree import UNNAMED, Tree
from ssd.sampling.ratio import DraftDistribution, Proposal

_COMPACT_FROM = 512
"""Nodes, dead ones counted, from which the tree is compacted as frames come in."""
MAX_ALIVE = 8192
"""More nodes than an honest draft ever holds for a sequence."""


class Knowledge(Enum):
    """What the mirror knows at the end of a verification, about what follows."""

    HIT = "hit"
    """The next token, and at least one after it."""
    LATE = "late"
    """The next token, but not yet what follows it."""
    UNKNOWN = "unknown"
    """Not even the next token."""
    UNHEARD = "unheard"
    """The draft has said nothing of this sequence yet, or part of what it said is missing."""


@dataclass(frozen=True, slots=True)
class Path:
    """A speculation: tokens, and the chance that the text runs through each of them."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    proposals: tuple[Proposal, ...] | None = None
    """Under ratio acceptance, what each token was drawn from."""


class Mirror:
    def __init__(self, epoch: int, last_token: int) -> None:
        self.epoch = epoch
        self.n = 0
        """Outcomes so far."""
        self.num_frames = 0
        """Frames taken, and so the number of the one that is due."""
        self.is_torn = False
        """A frame is missing: nothing is taken until the whole tree comes."""
        self._tree = Tree(UNNAMED, last_token)
        self._anchor: tuple[int, tuple[int, ...]] = (UNNAMED, ())
        """Where an unnamed root hangs: the last node with a name, and the unknown tokens from there."""
        self._unacknowledged: deque[tuple[int, tuple[int, ...]]] = deque()
        self._largest_id = UNNAMED
        self._was_heard = False
        self._drawn_from: dict[int, DraftDistribution] = {}
        """Under ratio acceptance, by a node's id: what its first child was drawn from."""

    @property
    def tree(self) -> Tree:
        return self._tree

    def take(self, frame: Nodes) -> None:
        """Takes a frame in, or drops it: whatever it holds, the tokens of the text stay the target's."""
        if frame.epoch != self.epoch or frame.number < self.num_frames or frame.n > self.n:
            return
        if (frame.number > self.num_frames or self.is_torn) and not frame.full:
            self.is_torn = True
            return
        self.num_frames = frame.number + 1
        self._was_heard = True
        while self._unacknowledged and self._unacknowledged[0][0] <= frame.n:
            self._unacknowledged.popleft()
        try:
            self._apply(frame)
        except ValueError:
            self.is_torn = True

    def advance(self, tokens: Sequence[int]) -> Knowledge:
        """Moves the root along the new tokens of the text."""
        self.n += 1
        self._unacknowledged.append((self.n, tuple(tokens)))
        self._follow(tokens)
        if not self._was_heard or self.is_torn:
            return Knowledge.UNHEARD
        if self._tree.num_children[self._tree.root]:
            return Knowledge.HIT
        return Knowledge.UNKNOWN if self._tree.root_id == UNNAMED else Knowledge.LATE

    def speculation(self, limit: int) -> Path:
        tree = self._tree
        nodes = tree.best_path(limit)
        if not nodes:
            return Path()
        root_value = tree.values[tree.root]
        chances = [math.exp(tree.values[node] - root_value) for node in nodes]
        tokens = [tree.tokens[node] for node in nodes]
        if not self._drawn_from:
            return Path(tuple(tokens), tuple(chances))
        return self._drawn_path(nodes, tokens, chances)

    def _drawn_path(self, nodes: list[int], tokens: list[int], values: list[float]) -> Path:
        """As far as it is known what the tokens were drawn from."""
        parents = [self._tree.ids[self._tree.parents[node]] for node in nodes]
        proposals: list[Proposal] = []
        for parent, token in zip(parents, tokens, strict=True):
            q = self._drawn_from.get(parent)
            if q is None or token not in q.token_ids:
                break
            proposals.append(Proposal(token, q))
        count = len(proposals)
        return Path(tuple(tokens[:count]), tuple(values[:count]), tuple(proposals))

    def _apply(self, frame: Nodes) -> None:
        for drawn in frame.drawn:
            q = DraftDistribution(unpack_ints(drawn.tokens), unpack_floats(drawn.weights))
            self._drawn_from[drawn.parent] = q
        ids, parents = listed_ints(frame.ids), listed_ints(frame.parents)
        tokens, logprobs = listed_ints(frame.tokens), listed_floats(frame.logprobs)
        if frame.full:
            self._rebuild(frame, ids, parents, tokens, logprobs)
            return
        if ids and ids[0] <= self._largest_id:
            raise ValueError("an id came twice")
        if frame.n == self.n:
            self._name_root(frame.root)
        elif self._tree.root_id == UNNAMED:
            self._move_anchor(frame.root)
        if self._tree.size > _COMPACT_FROM:
            self._tree.compact()
            if self._drawn_from:
                alive = set(self._tree.ids)
                self._drawn_from = {node: q for node, q in self._drawn_from.items() if node in alive}
            if self._tree.size > MAX_ALIVE:
                raise ValueError("more nodes than a draft may send")
        self._graft(ids, parents, tokens, logprobs)
        if ids:
            self._largest_id = ids[-1]

    def _rebuild(
        self, frame: Nodes, ids: list[int], parents: list[int], tokens: list[int], logprobs: list[float]
    ) -> None:
        # The root's token is what the text says; only its name matters here.
        self._tree = Tree(frame.root, self._tree.tokens[self._tree.root])
        self._anchor = (UNNAMED, ())
        self._graft(ids, parents, tokens, logprobs)
        self._largest_id = max(self._largest_id, frame.root, *ids[-1:])
        self.is_torn = False
        for _n, missed in self._unacknowledged:
            self._follow(missed)

    def _name_root(self, root_id: int) -> None:
        known = self._tree.root_id
        if known == UNNAMED:
            if self._tree.index_of(root_id) is not None:
                raise ValueError("the root has another node's id")
            self._tree.name_root(root_id)
            self._anchor = (UNNAMED, ())
            self._largest_id = max(self._largest_id, root_id)
        elif known != root_id:
            raise ValueError("the two sides have different roots")

    def _move_anchor(self, root_id: int) -> None:
        """To the root the draft has, where that is nearer: after a miss it has begun again from there."""
        since = tuple(token for _n, tokens in self._unacknowledged for token in tokens)
        if self._anchor[0] == UNNAMED or len(since) < len(self._anchor[1]):
            self._anchor = (root_id, since)

    def _graft(self, ids: list[int], parents: list[int], tokens: list[int], logprobs: list[float]) -> None:
        """Siblings come together; those of a parent that is no longer known belong to a lost branch."""
        last = 0
        for parent_id, siblings in groupby(parents):
            first, last = last, last + len(list(siblings))
            group = slice(first, last)
            parent = self._tree.index_of(parent_id)
            if parent is not None:
                self._tree.graft(parent, ids[group], tokens[group], logprobs[group])
            elif parent_id == self._anchor[0]:
                self._find_root(ids[group], tokens[group])

    def _find_root(self, ids: list[int], tokens: list[int]) -> None:
        """The children of the anchor have come, after the outcome: the unknown token may be among them."""
        _parent, unknown = self._anchor
        if unknown[0] not in tokens:
            return
        node_id = ids[tokens.index(unknown[0])]
        if len(unknown) > 1:
            self._anchor = (node_id, unknown[1:])
        else:
            self._anchor = (UNNAMED, ())
            self._tree.name_root(node_id)

    def _follow(self, tokens: Sequence[int]) -> None:
        tree = self._tree
        path = tree.walk(tokens)
        if len(path) == len(tokens):
            tree.move_root(path[-1])
            return
        unknown = tuple(tokens[len(path) :])
        if path:
            self._anchor = (tree.ids[path[-1]], unknown)
        elif tree.root_id != UNNAMED:
            self._anchor = (tree.root_id, unknown)
        else:
            self._anchor = (self._anchor[0], (*self._anchor[1], *unknown))
        tree.replant(UNNAMED, int(tokens[-1]))
        self._drawn_from.clear()
