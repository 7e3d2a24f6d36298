"""What never changes, made once: a number inside a step would be filled in, or even sent, each time."""

from dataclasses import dataclass

from ssd.draft.forest.arrays import Array, Arrays
from ssd.draft.forest.tables import NO_TOKEN, NODE_BITS, RANKS, WORD, WORDS, Shape

EDGES = (-7.0, -5.0, -4.0, -3.0, -2.2, -1.5, -1.0, -0.6, -0.3, -0.1, -0.02)
"""Borders of log-probability between the bins of the calibration."""
NOTHING = 0x7F800000 << 32
"""A key behind all others: infinitely far."""


@dataclass(frozen=True, slots=True)
class Constants:
    bits: Array  # [2, F]: of each slot; the root has none
    sequences: Array
    families: Array
    rows: Array
    candidates: Array  # for the rows of a step
    ring: Array
    places: Array  # in an outcome
    ranks: Array
    run: Array
    nodes: Array  # [F, C]: where each lies, and above that its rank
    best: Array  # of the nodes of one tree
    columns: Array  # of the tokens to be read and then the nodes of one tree
    first_cells: Array  # of each rank
    edges: Array
    zero: Array
    minus: Array  # NO_TOKEN
    nothing: Array
    root: Array
    roots: Array  # [S, 1]
    scratch: Array  # the KV slot of padding
    nowhere: Array  # behind the last place of an outcome
    nought: Array  # float64
    half: Array
    one: Array
    never: Array  # float32
    last: Array  # float64: behind every turn
    no_flags: Array  # one a row
    all_flags: Array

    @classmethod
    def of(cls, xp: Arrays, shape: Shape) -> "Constants":
        f, c, all_rows = shape.families, shape.children, shape.num_rows + shape.lookup
        edges = xp.exacts(len(EDGES))
        for place, edge in enumerate(EDGES):
            edges[place] = edge
        return cls(
            bits=slot_bits(xp, shape),
            sequences=xp.of(range(shape.sequences + 1)),
            families=xp.of(range(f)),
            rows=xp.of(range(all_rows)),
            candidates=xp.of(range((shape.sequences + 1) * (shape.ring + min(shape.width, shape.slots)))),
            ring=xp.of(range(shape.ring)),
            places=xp.of(range(shape.outcome)),
            ranks=xp.of(range(c)),
            run=xp.of(range(shape.lookup)),
            nodes=xp.of([node + (node % c << NODE_BITS) for node in range(f * c)]).reshape(f, c),
            best=xp.of(range(min(shape.width, shape.slots))),
            columns=xp.of(range(shape.ring + min(shape.width, shape.slots))),
            first_cells=xp.of([min(rank, RANKS - 1) * (len(EDGES) + 1) for rank in range(c)]),
            edges=edges,
            zero=xp.integers(),
            minus=xp.integers(fill=NO_TOKEN),
            nothing=xp.integers(fill=NOTHING),
            root=xp.integers(fill=shape.root),
            roots=xp.integers(shape.sequences + 1, 1, fill=shape.root),
            scratch=xp.integers(fill=shape.arena),
            nowhere=xp.integers(fill=shape.outcome),
            nought=xp.exacts(),
            half=xp.exacts(fill=0.5),
            one=xp.exacts(fill=1.0),
            never=xp.reals(fill=float("-inf")),
            last=xp.exacts(fill=float("inf")),
            no_flags=xp.flags(all_rows),
            all_flags=~xp.flags(all_rows),
        )


def slot_bits(xp: Arrays, shape: Shape) -> Array:
    """Of each slot the bit of its word: [2, F]."""
    bits = [[0] * shape.families for _ in range(WORDS)]
    for slot in range(shape.slots):
        # As a signed number: the last bit of a word is its sign.
        bits[slot // WORD][slot] = 1 << slot % WORD if slot % WORD < WORD - 1 else -(1 << WORD - 1)
    return xp.joined([xp.of(each)[None] for each in bits], 0)
