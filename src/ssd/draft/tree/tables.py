"""The tables of all trees: arrays of fixed shape with a row for each sequence. Data only.

A *slot* holds a processed node: its key and value are in the tree's KV slots, and its children are its
*family*. Child r of slot j is the node (j, r), so parents, siblings and children need no links; a slot's
ancestors are bits of two words. Nodes never change their slot. The keys of an accepted path are copied into
the sequence's KV blocks. The root's key is in those blocks; its family comes after the last slot's.

Sequences are numbered from 1. Row 0 of every table is scratch, where padding writes. Positions count from the
start of the text. `Constants` are made once: a Python number in a step would be copied to the device each
time.
"""

from dataclasses import dataclass, fields, replace

from ssd.draft.tree.arrays import Array, Arrays
from ssd.kvcache.pool import NODES_PER_TREE

WORD = 64
"""Bits of a word: one for each slot."""
WORDS = NODES_PER_TREE // WORD
KINDS = 2
"""Greedy and sampled guesses: each kind is calibrated separately."""
RANKS = 8
"""Ranks that the calibration tells apart."""
BINS = 12
"""Bins of log-probability that the calibration tells apart."""
TENANT_CELLS = KINDS * RANKS * BINS
NODE_BITS = 11
"""Bits of a node's number within its tree: family · children + rank."""
MAX_CHILDREN = 8
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the tables and of a step."""

    sequences: int
    width: int
    """Nodes processed in one step."""
    rows: int = 0
    """Rows of one step, including unread tokens of texts; at least the width."""
    lookup: int = 0
    """Additional rows for runs."""
    slots: int = WORDS * WORD
    """Nodes of each tree that can be processed: each has KV slots."""
    children: int = 4
    outcome: int = 9
    """Most tokens of an outcome that are applied at once."""
    ring: int = 32
    """Last tokens of each text that the tables hold. Unread tokens within the ring are read by rows."""
    ends: int = 8
    """Most end tokens of a sequence. Nodes with an end token are not processed."""
    block: int = 16
    """Tokens of a KV block."""
    blocks: int = 256
    """Most KV blocks of a sequence."""
    first_tree_slot: int = 0
    """The first KV slot of row 0's tree, which is scratch. The other trees' slots follow."""

    def __post_init__(self) -> None:
        if not 0 < self.slots <= WORDS * WORD:
            raise ValueError(f"{self.slots} slots per tree: 1 to {WORDS * WORD} are possible")
        if not 0 < self.children <= MAX_CHILDREN:
            raise ValueError(f"{self.children} children per node: 1 to {MAX_CHILDREN} are possible")
        if self.outcome > self.ring:
            raise ValueError(f"outcomes of {self.outcome} tokens do not fit a ring of {self.ring}")

    @property
    def num_rows(self) -> int:
        """Rows of a step, without those of runs."""
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
    """S rows: scratch, then the sequences. F families, F − 1 slots, C children."""

    # For each sequence [S].
    is_live: Array  # may grow: open, in sync, and credit is left
    is_new: Array  # its prompt is not read yet: unread tokens do not count as width
    steps_left: Array  # estimated steps until its next outcome
    length: Array
    num_computed: Array
    last_position: Array  # last position that is processed
    max_length: Array
    max_depth: Array
    root_id: Array
    next_id: Array
    ring: Array  # [S, ring] the token of position p is at p mod ring
    blocks: Array  # [S, blocks] the KV block table
    ends: Array  # [S, ends]
    vocab: Array  # tokens from here on are never guessed
    kind: Array
    calibration: Array  # its part of `counts`: by tenant and kind
    seed: Array
    is_murmur: Array  # its noise is that of vLLM's V2 runner
    temperature: Array  # [S] float32; 1 where greedy
    top_k: Array
    top_p: Array  # float64
    log_min_p: Array  # float64
    # For each slot [S, F]; the last is the root's family.
    is_used: Array
    position: Array
    token: Array
    node_id: Array
    first_id: Array  # id of its first child; the others follow
    ancestors: Array  # [2, S, F] bits of the slots between the root and this slot
    value: Array  # float64 log-probability, relative to the root
    parted: Array  # [2, S, F] the last two positions where the path left the most likely one
    parted_rank: Array  # the rank that it took at the last one
    # For each node [S, F, C].
    child_token: Array  # NO_TOKEN: no such child
    is_open: Array  # may be processed
    child_raw: Array  # float32 log-probability, not calibrated
    child_value: Array  # float64 log-probability, calibrated, relative to the root
    # For each tenant (server/tenants.py) [2, tenants · KINDS · RANKS · BINS]: guesses seen, and right ones.
    counts: Array

    @classmethod
    def of(cls, xp: Arrays, shape: Shape) -> "Tables":
        s, f, c = shape.sequences + 1, shape.families, shape.children
        return cls(
            is_live=xp.flags(s),
            is_new=xp.flags(s),
            steps_left=xp.integers(s, fill=1),
            length=xp.integers(s),
            num_computed=xp.integers(s),
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
            seed=xp.integers(s),
            is_murmur=xp.flags(s),
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
        """Views of scratch and the first `count` sequences: fewer rows cost less."""
        end, own = count + 1, ("ancestors", "parted")
        views = {each.name: getattr(self, each.name)[:end] for each in fields(self)}
        views |= {name: getattr(self, name)[:, :end] for name in own}
        return replace(self, **views | {"counts": self.counts})

    def copy_of(self, sequences: Array) -> "Tables":
        """A table of these sequences only. The columns that outcomes use are copied; all others are shared
        with this table."""
        copies = {name: getattr(self, name)[sequences] for name in _OUTCOME_COLUMNS}
        copies |= {name: getattr(self, name)[:, sequences] for name in _OUTCOME_COLUMNS_OF_PAIRS}
        return replace(self, **copies)

    def write_back(self, sequences: Array, copies: "Tables") -> None:
        """Writes the columns that `copy_of` copied."""
        for name in _OUTCOME_COLUMNS:
            getattr(self, name)[sequences] = getattr(copies, name)
        for name in _OUTCOME_COLUMNS_OF_PAIRS:
            getattr(self, name)[:, sequences] = getattr(copies, name)


_OUTCOME_COLUMNS = (
    *("length", "num_computed", "last_position", "max_length", "max_depth", "root_id", "next_id"),
    *("ring", "blocks", "calibration", "is_used", "position", "token", "node_id", "first_id", "value"),
    *("parted_rank", "child_token", "is_open", "child_raw", "child_value"),
)
"""Columns that tree/apply.py reads or writes. Their first axis is the sequence."""
_OUTCOME_COLUMNS_OF_PAIRS = ("ancestors", "parted")
"""The same, with the sequence on the second axis."""


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The rows of a forward. Rows of a sequence are adjacent; padding belongs to sequence 0.

    Rows of runs come last.
    """

    sequence: Array
    home: Array  # the same, but ascending: larger than all sequences for padding
    token: Array
    position: Array
    context_len: Array  # keys in the KV blocks that it sees, including its own if it is a token of the text
    ancestors: Array  # [2, W] bits of the tree slots that it sees, without its own
    target: Array  # the KV slot that its key is written to
    slot: Array  # its tree slot, or the root's family
    family: Array  # its parent's family
    rank: Array
    node_id: Array
    value: Array
    start: Array  # the first row of its sequence, or of its run
    key: Array  # smaller keys were selected first
    is_read: Array  # it is a token of the text
    attaches: Array  # it is a node or the root: its logits become children

    def part(self, start: int, end: int) -> "TreeRows":
        views = {each.name: getattr(self, each.name)[..., start:end] for each in fields(self)}
        return TreeRows(**views)


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """Rows that tenants have had. Written by the host (server/tenants.py). Tenant 0 is nobody."""

    tenant: Array  # [S] by sequence: its tenant
    used: Array  # [S] by tenant: float64, rows that it has had, divided by its weight
    weight: Array  # [S] by tenant: float64
    wanted: Array  # [S] by sequence: rows that it wanted in the last step (an output)

    @classmethod
    def of(cls, xp: Arrays, shape: Shape) -> "TenantUsage":
        s = shape.sequences + 1
        return cls(xp.integers(s), xp.exacts(s), xp.exacts(s, fill=1.0), xp.integers(s))


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """At most one outcome for each sequence. A count of 0 means none."""

    count: Array  # [S]
    tokens: Array  # [S, outcome]

    @classmethod
    def of(cls, xp: Arrays, shape: Shape) -> "OutcomeTable":
        s = shape.sequences + 1
        return cls(xp.integers(s), xp.integers(s, shape.outcome))


@dataclass(frozen=True, slots=True)
class Moves:
    """KV slots to copy from and to. Unused entries copy scratch to scratch."""

    sources: Array
    targets: Array


EDGES = (-7.0, -5.0, -4.0, -3.0, -2.2, -1.5, -1.0, -0.6, -0.3, -0.1, -0.02)
"""Borders between the calibration's bins of log-probability."""
NOTHING = 0x7F800000 << 32
"""A key after all others: its distance is infinite."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Arrays and numbers that steps need and that never change."""

    bits: Array  # [2, F] the bit of each slot; the root has none
    sequences: Array
    families: Array
    rows: Array
    candidates: Array  # numbers of all candidates for rows
    ring: Array
    places: Array  # numbers of an outcome's tokens
    ranks: Array
    run: Array
    nodes: Array  # [F, C] the number of each node, and in higher bits its rank
    best: Array  # numbers of a tree's best nodes
    columns: Array  # numbers of a tree's unread tokens and then its best nodes
    first_cells: Array  # the first calibration cell of each rank
    edges: Array
    zero: Array
    minus: Array  # NO_TOKEN
    nothing: Array
    root: Array
    roots: Array  # [S, 1]
    scratch: Array  # the KV slot that padding uses
    nowhere: Array  # the place after an outcome's last token
    nought: Array  # float64 0
    half: Array
    one: Array
    never: Array  # float32 −inf
    last: Array  # float64 ∞: after every tenant's usage
    no_flags: Array  # one per row
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
    """The bit of each slot in its word: [2, F]."""
    bits = [[0] * shape.families for _ in range(WORDS)]
    for slot in range(shape.slots):
        # Signed: the last bit of a word is its sign.
        bits[slot // WORD][slot] = 1 << slot % WORD if slot % WORD < WORD - 1 else -(1 << WORD - 1)
    return xp.joined([xp.of(each)[None] for each in bits], 0)
