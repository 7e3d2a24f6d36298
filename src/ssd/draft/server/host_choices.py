"""Runs and drawn children, which only the host can decide because they depend on whole texts.

A run continues the text as it went on before (ngram.py). Drawn children are for ratio acceptance: the same
code as everywhere else draws them, row by row, between a step's logits and `attach`. Parameters that depend
on tokens are in `logit_edits.py`. Knows texts and tables; does not know sockets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ssd.draft.server.session import DraftSession
from ssd.draft.tree.attach import RunRows
from ssd.draft.tree.children import DrawnChildren, DrawSettings, drawn_children
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.tables import WORD

_MASK = (1 << WORD) - 1
_NO_RUNS = RunRows(*np.zeros((3, 0), np.int64))
Texts = Mapping[int, DraftSession]
"""By row of the tables."""


class Paths:
    """The paths between the root and the rows of a step."""

    def __init__(self, forest: Forest) -> None:
        rows, to_host = forest.rows, forest.xp.to_host
        self._is_read, self._sequence = to_host(rows.is_read), to_host(rows.sequence)
        self._ancestors, self._last = to_host(rows.ancestors), to_host(rows.token)
        self._position, self._token = to_host(forest.tables.position), to_host(forest.tables.token)

    def to(self, row: int) -> list[int]:
        """The tokens after the root, up to and including the row's own."""
        if self._is_read[row]:
            return []
        last = int(self._last[row])
        slots = list(_slots(self._ancestors[:, row].tolist()))
        if not slots:
            return [last]
        sequence = int(self._sequence[row])
        if len(slots) > 1:
            slots.sort(key=self._position[sequence].__getitem__)
        return [*self._token[sequence, slots].tolist(), last]


def _slots(words: Sequence[int]) -> Iterator[int]:
    """The numbers of the bits that are set."""
    for number, word in enumerate(words):
        rest = word & _MASK
        while rest:
            yield number * WORD + (rest & -rest).bit_length() - 1
            rest &= rest - 1


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens that a step processes at once, one after the other, below one of its rows."""

    owner: int
    """The row whose node the run starts from."""
    tokens: Sequence[int]


def find_runs(forest: Forest, texts: Texts) -> list[TokenRun]:
    """Runs from roots that are read, then from the best node of each tree, while there is room."""
    xp, rows, shape = forest.xp, forest.rows, forest.shape
    attaches, is_read, home = xp.to_host(rows.attaches), xp.to_host(rows.is_read), xp.to_host(rows.home)
    own = shape.num_rows if xp.is_fixed else len(home)
    is_first = is_read[:own] | (xp.to_host(rows.start)[:own] == np.arange(own))
    firsts = np.flatnonzero(attaches[:own] & is_first)
    num_taken = np.bincount(xp.to_host(rows.sequence)[:own], attaches[:own] & ~is_read[:own])
    is_used = xp.to_host(forest.tables.is_used)
    budget, found, paths = shape.lookup, list[TokenRun](), Paths(forest)
    for row in _in_turn(forest, firsts):
        if not budget:
            break
        sequence = int(home[row])
        session = texts[sequence]
        # Not for drawn guesses: the time until a frame must not depend on the tokens in it.
        if session.draws:
            continue
        tokens = session.guess(paths.to(row), budget)
        if tokens:
            room = shape.slots - int(is_used[sequence, : shape.slots].sum() + num_taken[sequence])
            tokens = tokens[: max(0, room)]
        if tokens:
            found.append(TokenRun(row, tokens))
            budget -= len(tokens)
    return found


def _in_turn(forest: Forest, firsts: NDArray[np.int64]) -> list[int]:
    """Rows that runs may start from, in the order in which they are tried."""
    if len(firsts) > 1:
        xp, rows = forest.xp, forest.rows
        home, keys = xp.to_host(rows.home)[firsts], xp.to_host(rows.key)[firsts]
        # New texts come last: their prompts are read in this step.
        lengths = xp.to_host(forest.tables.is_new)[home] * xp.to_host(forest.tables.length)[home]
        firsts = firsts[np.lexsort((keys, lengths, ~xp.to_host(rows.is_read)[firsts]))]
    found: list[int] = firsts.tolist()
    return found


def load_runs(forest: Forest, runs: Sequence[TokenRun]) -> None:
    """Writes runs to the forest, padded where shapes are fixed."""
    xp = forest.xp
    if not runs and not xp.is_fixed:
        forest.runs = _NO_RUNS
        return
    columns = np.array(
        [(run.owner, place, token) for run in runs for place, token in enumerate(run.tokens)], np.int64
    ).reshape(-1, 3)
    if not xp.is_fixed:
        forest.runs = RunRows(*columns.T)
        return
    for table, values, empty in zip(
        (forest.runs.owner, forest.runs.place, forest.runs.token), columns.T, (-1, 0, 0), strict=True
    ):
        full = np.full(forest.shape.lookup, empty, np.int64)
        full[: len(values)] = values
        xp.load(table, full)


class ChildDrawer:
    """Draws the children of rows whose sessions use ratio acceptance."""

    def __init__(self, count: int, head_tokens: Tensor | None) -> None:
        self._count, self._head_tokens = count, head_tokens

    def write(
        self,
        forest: Forest,
        texts: Texts,
        logits: Tensor,
        chosen: tuple[NDArray[Any], NDArray[Any]],
        runs: Sequence[TokenRun],
    ) -> None:
        """Replaces these rows' entries of `chosen` (tokens and log-probabilities) in place."""
        sequence, attaches = forest.xp.to_host(forest.rows.sequence), forest.xp.to_host(forest.rows.attaches)
        wanted = forest.xp.to_host(forest.tables.is_drawn)[sequence] & attaches
        # Unless shapes are fixed, rows that attach nothing have no logits.
        places = np.arange(len(sequence)) if forest.xp.is_fixed else attaches.cumsum() - 1
        node_ids = forest.xp.to_host(forest.rows.node_id)
        tails, paths = _tails(forest, runs), Paths(forest)
        for row in np.flatnonzero(wanted).tolist():
            owner, tail = tails.get(row, (row, ()))
            path = [*paths.to(owner), *tail]
            session = texts[int(sequence[row])]
            children = self._drawn(logits[int(places[row])], session, path, int(node_ids[owner]))
            number = len(children.tokens)
            chosen[0][row, :number], chosen[1][row, :number] = children.tokens, children.raws
            chosen[1][row, number:] = -np.inf

    def _drawn(
        self, logits: Tensor, session: DraftSession, path: Sequence[int], node_id: int
    ) -> DrawnChildren:
        drawing = DrawSettings(
            session.node_seed(node_id),
            session.opening.sampling.saguaro,
            self._head_tokens,
            session.vocab_size,
        )
        found: DrawnChildren = drawn_children(logits, session.sampling_row(path), self._count, drawing)
        session.drawn_from[node_id] = found.drawn_from
        return found


def _tails(forest: Forest, runs: Sequence[TokenRun]) -> dict[int, tuple[int, Sequence[int]]]:
    """By row of a run: the row that the run starts from, and the run's tokens up to its own."""
    row = forest.shape.num_rows if forest.xp.is_fixed else len(forest.rows.sequence) - len(forest.runs.owner)
    found: dict[int, tuple[int, Sequence[int]]] = {}
    for run in runs:
        for end in range(1, len(run.tokens) + 1):
            found[row] = run.owner, run.tokens[:end]
            row += 1
    return found
