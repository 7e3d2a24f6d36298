"""What the kit knows of a sequence, on either side: its text, its outcomes, and the tree that was sent.

`TreeCopy.take` checks each row of NODES that a draft sends. Knows the rules of trees; no sockets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ssd.draft.protocol.codec import FrameError
from ssd.draft.protocol.messages import (
    MAX_MESSAGES,
    Nodes,
    Open,
    Outcome,
    OutcomeHeads,
    TreePart,
    credit_for,
    unpack_floats,
)

_RULES_OF_ERRORS = {"ids of NODES": 25, "node of NODES": 25, "log-probability": 26}
"""By what `decode` says."""
_IN_FLIGHT = 4
"""Frames of steps that had begun when the credit was used up."""

Fault = tuple[int, str]
"""A rule, and how it was broken; an empty text: it was kept."""


def broken_rule(frame: bytes, error: FrameError | None = None) -> int:
    """The rule that a frame breaks which cannot be read."""
    for words, rule in _RULES_OF_ERRORS.items():
        if words in str(error):
            return rule
    try:
        return 2 if len(msgspec.msgpack.decode(frame, type=list)) <= MAX_MESSAGES else 1
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1


def rows_of(message: Nodes) -> list[TreePart]:
    """What a message says of each sequence."""
    (ids, parents, tokens), logprobs = message.node_columns().tolist(), unpack_floats(message.logprobs)
    rows, start = list[TreePart](), 0
    columns = (column.tolist() for column in message.columns())
    for seq, epoch, number, n, root, length, count, full in zip(*columns, strict=True):
        part = slice(start, start + count)
        start = part.stop
        rows.append(
            TreePart(
                *(seq, epoch, number, n, root, length),
                *(ids[part], parents[part], tokens[part], logprobs[part].tolist()),
                full=bool(full),
            )
        )
    return rows


def outcome_of(seq: int, epoch: int, n: int, num_frames: int, tokens: Sequence[int]) -> Outcome:
    heads = [[seq], [epoch], [n], [num_frames], [len(tokens)]]
    return Outcome.of(OutcomeHeads(*heads), tokens)  # type: ignore[arg-type]


@dataclass
class TreeCopy:
    """A target's copy of a draft's tree."""

    opening: Open
    vocab_size: int
    lengths: list[int] = field(default_factory=list)
    """Of the text, after each outcome."""
    tokens: list[list[int]] = field(default_factory=lambda: [[]])
    """Of each outcome; the first entry stands for the opening."""
    acknowledged: int = 0
    """Frames that outcomes have counted."""
    num_frames: int = 0
    n: int = 0
    """The latest outcome that the draft has named."""
    root: int | None = None
    largest: int = -1
    is_closed: bool = False
    """The draft has declined it."""
    children: dict[int, dict[int, int]] = field(default_factory=dict)
    """Ids by tokens, of each parent; the likeliest first."""

    def __post_init__(self) -> None:
        self.lengths.append(len(self.opening.tokens) // 4)

    def outcome(self, tokens: Sequence[int], *, n: int = 0, num_frames: int | None = None) -> Outcome:
        """The next outcome; with `n` one out of turn, which the draft should not apply."""
        if not n:
            self.lengths.append(self.lengths[-1] + len(tokens))
            self.tokens.append([*tokens])
        count = self.num_frames if num_frames is None else num_frames
        self.acknowledged = max(self.acknowledged, count)
        return outcome_of(self.opening.seq, self.opening.epoch, n or len(self.lengths) - 1, count, tokens)

    def path(self, most: int) -> list[int]:
        """The likeliest continuation of the text."""
        node, found = self._followed(self.root, self.n, len(self.lengths) - 1), list[int]()
        while node is not None and self.children.get(node) and len(found) < most:
            token, node = next(iter(self.children[node].items()))
            found.append(token)
        return found

    def unlikely_token(self) -> int:
        """One that the tree does not have next."""
        node = self._followed(self.root, self.n, len(self.lengths) - 1)
        known = self.children.get(-1 if node is None else node, {})
        return next(token for token in range(5, self.vocab_size) if token not in known)

    def take(self, row: TreePart) -> Iterator[Fault]:
        """Checks a row, and keeps what it says."""
        yield 22, "" if row.number == self.num_frames else f"frame {row.number} after {self.num_frames - 1}"
        self.num_frames = row.number + 1
        if not self.n <= row.n < len(self.lengths):
            yield 23, f"outcome {row.n} is named after {self.n}, and {len(self.lengths) - 1} were sent"
            return
        is_right = row.length == self.lengths[row.n]
        yield 23, "" if is_right else f"{row.length} tokens after outcome {row.n}: {self.lengths[row.n]}"
        yield 24, self._fault_of_root(row)
        if not row.full:
            unacknowledged = row.number + 1 - self.acknowledged
            is_within = unacknowledged <= credit_for(self.opening.lookahead) + _IN_FLIGHT
            yield 28, "" if is_within else f"{unacknowledged} frames are not acknowledged"
        self.n, self.root, self.largest = row.n, row.root, max(self.largest, row.root)
        if row.full:
            known, self.children = self._below(row.root), {}
            lost = known - {*row.ids}
            yield 30, f"nodes are missing in the whole tree: {sorted(lost)[:5]}" if lost else ""
        yield from self._nodes(row)

    def _followed(self, node: int | None, n: int, last: int) -> int | None:
        """The node at the end of the outcomes after the `n`-th, as far as the copy knows."""
        for token in (token for tokens in self.tokens[n + 1 : last + 1] for token in tokens):
            node = None if node is None else self.children.get(node, {}).get(token)
        return node

    def _fault_of_root(self, row: TreePart) -> str:
        expected = self._followed(self.root, self.n, row.n)
        if expected is not None and row.root != expected:
            return f"the root is {row.root} after outcome {row.n}: the path leads to {expected}"
        if expected is None and self.root is not None and row.root <= self.largest:
            return f"the new root {row.root} is not higher than {self.largest}"
        return ""

    def _below(self, root: int) -> set[int]:
        found, waiting = set[int](), [root]
        while waiting:
            children = {*self.children.get(waiting.pop(), {}).values()}
            found |= children
            waiting += children
        return found

    def _nodes(self, row: TreePart) -> Iterator[Fault]:
        if not row.ids:
            return
        known, depths = {row.root, *self._known_ids()}, {row.root: 0}
        deepest = min(2 * self.opening.lookahead + 2, self.opening.max_len - 1 - row.length)
        families = dict[int, list[int]]()
        for place, (node, parent) in enumerate(zip(row.ids, row.parents, strict=True)):
            yield 25, self._fault_of_id(row, place, known)
            families.setdefault(parent, []).append(place)
            known.add(node)
            self.largest = max(self.largest, node)
        yield 8, "" if max(row.tokens) < self.vocab_size else f"token {max(row.tokens)} is in no vocabulary"
        for parent, places in families.items():
            tokens = [row.tokens[place] for place in places]
            is_split = places[-1] - places[0] + 1 != len(places)
            twice = len({*tokens}) < len(tokens) or parent in self.children
            yield 25, f"the children of {parent} come twice or apart" if is_split or twice else ""
            yield 26, ""
            self.children[parent] = {row.tokens[place]: row.ids[place] for place in places}
        self._fill_depths(row.root, depths)
        found = max((depths.get(node, 0) for node in row.ids), default=0)
        yield 27, "" if found <= deepest else f"a node is {found} deep: at most {deepest} is wanted"

    def _fault_of_id(self, row: TreePart, place: int, known: set[int]) -> str:
        node, parent = row.ids[place], row.parents[place]
        if parent not in known or parent >= node:
            return f"{node} has the parent {parent}, which is unknown or younger"
        if not row.full and node <= self.largest:
            return f"id {node} is not higher than {self.largest}"
        follows = place and row.parents[place - 1] == parent
        return f"{node} does not follow its sibling" if follows and row.ids[place - 1] != node - 1 else ""

    def _known_ids(self) -> set[int]:
        return {node for family in self.children.values() for node in family.values()} | {*self.children}

    def _fill_depths(self, root: int, depths: dict[int, int]) -> None:
        waiting = [root]
        while waiting:
            parent = waiting.pop()
            for node in self.children.get(parent, {}).values():
                depths[node] = depths[parent] + 1
                waiting.append(node)
