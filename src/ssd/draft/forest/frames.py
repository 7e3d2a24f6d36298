"""From what a step left behind to frames: the new nodes of each tree, and whole trees where asked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssd.draft.forest.arrays import Arrays
from ssd.draft.forest.attach import HEAD
from ssd.draft.forest.tables import Shape, Tables

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NewNodes:
    """Of one sequence, in the order of their ids."""

    row: int
    root: int
    ids: list[int]
    parents: list[int]
    tokens: list[int]
    logprobs: list[float]


def new_nodes(fresh: Ints, children: int) -> Iterator[NewNodes]:
    """Of each sequence that has any. `fresh` [W, …] as `attach.py` writes it."""
    fresh = fresh[fresh[:, 1] > 0]
    order = np.argsort(fresh[:, 0], kind="stable")
    fresh = fresh[order] if (order[1:] < order[:-1]).any() else fresh
    rows, number, parents, first, root = fresh[:, :HEAD].T
    exists = np.arange(children) < number[:, None]
    ids = (first[:, None] + np.arange(children, dtype=np.int32))[exists].tolist()
    tokens = fresh[:, HEAD : HEAD + children][exists].tolist()
    logprobs = fresh[:, HEAD + children :].view(np.float32)[exists].tolist()
    named = parents.repeat(number).tolist()
    ends = number.cumsum()
    lasts = np.flatnonzero(np.diff(rows, append=-1))
    start = 0
    for row, its_root, end in zip(
        rows[lasts].tolist(), root[lasts].tolist(), ends[lasts].tolist(), strict=True
    ):
        part = slice(start, end)
        yield NewNodes(row, its_root, ids[part], named[part], tokens[part], logprobs[part])
        start = end


def whole_tree(xp: Arrays, shape: Shape, tables: Tables, row: int) -> NewNodes:
    """All nodes of a tree but its root."""

    def told(table: Any) -> NDArray[Any]:
        return xp.told(table[row])

    families = np.flatnonzero(told(tables.is_used))
    parents = told(tables.node_id)[families]
    root = int(told(tables.root_id))
    parents[families == shape.root] = root
    first = told(tables.first_id)[families]
    order = np.argsort(first)
    families, parents, first = families[order], parents[order], first[order]
    tokens = told(tables.child_token)[families]
    logprobs = told(tables.child_value)[families] - _values(shape, told(tables.value), families)
    exists = tokens >= 0
    return NewNodes(
        row,
        root,
        (first[:, None] + np.arange(shape.children))[exists].tolist(),
        parents.repeat(exists.sum(1)).tolist(),
        tokens[exists].tolist(),
        logprobs.astype(np.float32)[exists].tolist(),
    )


def _values(shape: Shape, values: NDArray[Any], families: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = np.where(families == shape.root, 0.0, values[families])[:, None]
    return found
