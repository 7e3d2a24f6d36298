"""What is kept of all trees: tables of fixed shape, a row for each sequence.

A *slot* is a processed node: its key and value lie in the sequence's part of the arena, and its children are
its *family*. Child r of slot j is the node (j, r), so parents, siblings and children need no links, and a
slot's ancestors are bits of two words. Slots are taken from those that are free and never move; an accepted
path is copied into the trunk. The root lies in the trunk; its family is the one behind the last slot.

Sequences count from 1: row 0 of every table is scratch, where padding writes. Positions count from the
text's start. `Constants` holds what never changes, made once: a number inside a step would be filled in, or
even sent, each time. Data only.
"""

from dataclasses import dataclass, fields, replace

from ssd.draft.tree.arrays import Array, Arrays
from ssd.kvcache.pool import NODES_PER_TREE
from ssd.sampling import SamplingParams

WORD = 64
"""Slots whose bits fit into a word."""
WORDS = NODES_PER_TREE // WORD
KINDS = 3
"""Greedy, coupled and drawn guesses err in different ways."""
RANKS = 8
BINS = 12
TENANT_CELLS = KINDS * RANKS * BINS
NODE_BITS = 11
"""A node of a tree in so many bits: family · children + rank."""
MAX_CHILDREN = 8
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Shape:
    sequences: int
    width: int
    """Nodes processed in one step."""
    rows: int = 0
    """Rows of one step, texts that are read among them: at least the width."""
    lookup: int = 0
    """Rows of runs beside them."""
    slots: int = WORDS * WORD
    """Nodes of each tree that have a key and a value."""
    children: int = 4
    outcome: int = 9
    """Tokens of an outcome, at most."""
    ring: int = 32
    """Last tokens of each text that are kept here: those that are not read yet are among them."""
    ends: int = 8
    """End tokens of a sequence that are known here: nothing is grown behind them."""
    block: int = 16
    blocks: int = 256
    """Of a trunk, at most."""
    first_tree_slot: int = 0
    """The first KV slot of the trees' arenas; that of row 0 is scratch."""

    def __post_init__(self) -> None:
        if not 0 < self.slots <= WORDS * WORD:
            raise ValueError(f"{self.slots} slots a tree: there are bits for {WORDS * WORD}")
        if not 0 < self.children <= MAX_CHILDREN:
            raise ValueError(f"{self.children} children a node: 1 to {MAX_CHILDREN} are possible")
        if self.outcome > self.ring:
            raise ValueError(f"outcomes of {self.outcome} tokens do not fit a ring of {self.ring}")

    @property
    def num_rows(self) -> int:
        """Rows of a step without those of runs."""
        return max(self.rows, self.width)

    def tree_start(self, sequence: Array) -> Array:
        """The KV slot of a tree's first node."""
        return self.first_tree_slot + sequence * NODES_PER_TREE

    @property
    def families(self) -> int:
        return self.slots + 1

    @property
    def root(self) -> int:
        """The root's family."""
        return self.slots


@dataclass(frozen=True, slots=True)
class Tables:
    """S rows: scratch, then the sequences. F families, R = F − 1 slots, C children."""

    # Of each sequence.
    is_live: Array  # it may grow: open, and credit is left
    is_new: Array  # never read to its end: what it lacks does not count as width
    steps_left: Array  # until its next outcome, as far as is known
    length: Array
    num_read: Array
    last_position: Array  # beyond this nothing is processed
    max_length: Array
    max_depth: Array
    root_id: Array
    next_id: Array
    ring: Array  # [S, ring] the token at position p is at p mod ring
    blocks: Array  # [S, blocks] of the trunk
    ends: Array  # [S, ends]
    vocab: Array  # what lies beyond is never guessed
    kind: Array
    calibration: Array  # the part of `counts` that it uses: of its tenant and kind
    is_drawn: Array  # its children come from the host
    seed: Array
    temperature: Array  # [S] float32; 1 where greedy
    top_k: Array
    top_p: Array  # float64
    log_min_p: Array  # float64
    # Of each slot [S, F]; the last is the root's family.
    is_used: Array
    position: Array
    token: Array
    node_id: Array
    first_id: Array  # of its children, which are numbered on
    ancestors: Array  # [2, S, F] bits of the slots between root and slot
    value: Array  # float64, relative to the root
    parted: Array  # [2, S, F] positions where the path last took no likeliest token, and before that
    parted_rank: Array  # its rank there
    # Of each node [S, F, C].
    child_token: Array  # NO_TOKEN where there is none
    is_open: Array  # may be processed
    child_raw: Array  # float32: what the model said
    child_value: Array  # float64
    # Of what was guessed and came [2, tenants · KINDS · RANKS · BINS]: seen, taken. Tenants as in tenants.py.
    counts: Array

    @classmethod
    def of(cls, xp: Arrays, shape: Shape) -> "Tables":
        s, f, c = shape.sequences + 1, shape.families, shape.children
        return cls(
            is_live=xp.flags(s),
            is_new=xp.flags(s),
            steps_left=xp.integers(s, fill=1),
            length=xp.integers(s),
            num_read=xp.integers(s),
            last_position=xp.integers(s),
            max_length=xp.integers(s),
            max_depth=xp.integers(s),
            root_id=xp.integers(s),
            next_id=xp.integers(s),
            ring=xp.integers(s, shape.ring),
            blocks=xp.integers(s, shape.blocks),
            ends=xp.integers(s, shape.ends, fill=NO_TOKEN),
            vocab=xp.integers(s),
            kind=xp.integers(s),
            calibration=xp.integers(s),
            is_drawn=xp.flags(s),
            seed=xp.integers(s),
            temperature=xp.reals(s, fill=1.0),
            top_k=xp.integers(s),
            top_p=xp.exacts(s, fill=1.0),
            log_min_p=xp.exacts(s, fill=float("-inf")),
            is_used=xp.flags(s, f),
            position=xp.integers(s, f),
            token=xp.integers(s, f),
            node_id=xp.integers(s, f),
            first_id=xp.integers(s, f),
            ancestors=xp.integers(WORDS, s, f),
            value=xp.exacts(s, f),
            parted=xp.integers(2, s, f, fill=-1),
            parted_rank=xp.integers(s, f),
            child_token=xp.integers(s, f, c, fill=NO_TOKEN),
            is_open=xp.flags(s, f, c),
            child_raw=xp.reals(s, f, c),
            child_value=xp.exacts(s, f, c),
            counts=xp.exacts(2, s * TENANT_CELLS),
        )

    def leading(self, count: int) -> "Tables":
        """Views of scratch and the first `count` sequences: fewer cost less."""
        end, own = count + 1, ("ancestors", "parted")
        views = {each.name: getattr(self, each.name)[:end] for each in fields(self)}
        views |= {name: getattr(self, name)[:, :end] for name in own}
        return replace(self, **views | {"counts": self.counts})


@dataclass(frozen=True, slots=True)
class TreeRows:
    """What a forward computes, row by row; the rows of a sequence lie together. Padding is of sequence 0.

    Behind them lie the rows of runs.
    """

    sequence: Array
    home: Array  # the same, but ascending: padding comes last
    token: Array
    position: Array
    context_len: Array  # keys of the trunk that it sees; its own among them where it is a token of the text
    ancestors: Array  # [2, W] slots of its tree that it sees beside its own
    target: Array  # the KV slot of its own key
    slot: Array  # its slot, or the root's family
    family: Array  # of the node that it is
    rank: Array
    node_id: Array
    value: Array
    start: Array  # the first row of its sequence; of a run, its first row
    key: Array  # smaller ones were chosen first
    is_read: Array  # a token of the text
    attaches: Array  # a node, or the root: its logits become children

    def part(self, start: int, end: int) -> "TreeRows":
        views = {each.name: getattr(self, each.name)[..., start:end] for each in fields(self)}
        return TreeRows(**views)


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """Whose turn it is, by the host's word (tenants.py). Tenants count from 0, which is nobody's."""

    tenant: Array  # [S] of each sequence
    used: Array  # [S] of each tenant: float64, the rows that it has had, by its weight
    weight: Array  # [S] of each tenant: float64
    wanted: Array  # [S] of each sequence: rows that it would have taken in the last step

    @classmethod
    def of(cls, xp: Arrays, shape: Shape) -> "TenantUsage":
        s = shape.sequences + 1
        return cls(xp.integers(s), xp.exacts(s), xp.exacts(s, fill=1.0), xp.integers(s))


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """At most one outcome of each sequence; a count of 0: none."""

    count: Array  # [S]
    tokens: Array  # [S, outcome]

    @classmethod
    def of(cls, xp: Arrays, shape: Shape) -> "OutcomeTable":
        s = shape.sequences + 1
        return cls(xp.integers(s), xp.integers(s, shape.outcome))


@dataclass(frozen=True, slots=True)
class Moves:
    """KV slots whose content goes elsewhere; what does not move goes from scratch to scratch."""

    sources: Array
    targets: Array


def kind_of(params: SamplingParams, *, draws: bool) -> int:
    return 0 if params.greedy else 2 if draws else 1


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
            scratch=xp.integers(fill=shape.first_tree_slot),
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
