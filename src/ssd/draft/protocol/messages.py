"""What engine and draft say to each other: typed and versioned. docs/protocol.md describes it for others.

What a step has to say of all its sequences is one message: NODES after a draft's step, OUTCOME after a
verification. Arrays travel as packed little-endian numbers. How frames are read and checked is in
codec.py; nothing here knows sockets.

    engine → draft   HELLO, ASK (is there room?), OPEN, OUTCOME, RESYNC (send me your tree), CLOSE
    draft → engine   HELLO, OFFER (there is), NODES, RESYNC (send me your tokens), CLOSE (declined), STATS
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

PROTOCOL_VERSION = 4
OLDEST_VERSION = 4
"""The oldest version that is still spoken. From version 5 on it is the one before the newest."""
MAX_FRAME_BYTES = 4 << 20
MAX_MESSAGES = 1024
MAX_SEQUENCES = 4096
MAX_NODES = 4096
"""Of one sequence in one message."""
MAX_ID = 2**31 - 1
MAX_EPOCH = 2**53
MAX_COUNT = 2**53
"""Largest counter value in a message. Counters start with the draft, and no draft gets this far."""
MAX_TOKENS = 1 << 19
MAX_LIST = 1024
MAX_TEXT = 1000
MAX_CHUNKS = 1024
PREFIX_CHUNK = 64
"""Tokens that each hash of ASK's prefix adds."""
HASH_BYTES = 8
"""Of each hash of ASK's prefix."""
OFFER_SECONDS = 1.0
"""How long a draft keeps room for a sequence that it has offered to take."""
HEARTBEAT_SECONDS = 2.0
"""A draft that has had nothing to say for this long sends STATS: the target learns that it is alive, and the
draft notices if the target is gone."""
CREDIT = 64
"""Frames of a sequence that may be sent without an acknowledgement."""
CREDIT_PER_LOOKAHEAD = 4
"""Credit for each token of lookahead, where that is more than `CREDIT`: a long lookahead means a long way to
the draft (draft/client/router.py), so more frames are in flight."""

_INT = np.dtype("<i4")
_LONG = np.dtype("<i8")
_FLOAT = np.dtype("<f4")

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Longs = NDArray[np.int64]


def credit_for(lookahead: int) -> int:
    return max(CREDIT, CREDIT_PER_LOOKAHEAD * lookahead)


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A map with a key for each field. Unknown keys are ignored: a later version may add fields."""


class Message(Record, frozen=True, tag_field="type"):
    """A record with a further key, `type`."""


class Hello(Message, frozen=True, tag="hello"):
    """The first message of both sides. The draft's contains a refusal if the two do not fit.

    These fields keep their names and meanings in every version; otherwise a refusal by another version could
    not be read.
    """

    version: int
    """The newest that this side speaks."""
    tokenizer: str
    """What each token id means, as `tokenizer_fingerprint` has it."""
    vocab_size: int
    name: str
    instance: str
    """Drawn at start. A different value means that the process was restarted and has no sessions."""
    max_model_len: int = 0
    refusal: str = ""
    oldest: int = 0
    """The oldest version that this side speaks; 0: only `version`."""

    @property
    def versions(self) -> range:
        return range(self.oldest or self.version, self.version + 1)

    @classmethod
    def of(cls, tokenizer: Any, *, vocab_size: int, name: str, max_model_len: int) -> "Hello":
        """The message of a process that starts now. The tokenizer has `get_vocab` and `get_added_vocab`."""
        return cls(
            version=PROTOCOL_VERSION,
            tokenizer=tokenizer_fingerprint(tokenizer),
            vocab_size=vocab_size,
            name=name,
            instance=uuid.uuid4().hex,
            max_model_len=max_model_len,
            oldest=OLDEST_VERSION,
        )


def version_fault(draft: Hello, engine: Hello) -> str:
    """Why the two speak no common version, and what to install; empty: they settle on the newest of both."""
    newest = min(draft.version, engine.version)
    if newest in draft.versions and newest in engine.versions:
        return ""
    older, newer = ("draft", "engine") if draft.version < engine.version else ("engine", "draft")
    return (
        f"the draft speaks {_versions_text(draft)} and the engine {_versions_text(engine)}: "
        f"install the {newer}'s version of ssd, or a later one, on the {older}'s side"
    )


def _versions_text(hello: Hello) -> str:
    oldest = hello.oldest or hello.version
    return f"protocol version {hello.version}" + (f" (down to {oldest})" if oldest < hello.version else "")


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """The same for tokenizers that differ in added tokens and padding only: there families differ.

    Where a model has more ids than its tokenizer has tokens, GGUF files name the others `[PAD<id>]`.
    """
    added = set(tokenizer.get_added_vocab().values())
    vocabulary = {token: text for text, token in tokenizer.get_vocab().items()}
    digest = sha256()
    for token in sorted(vocabulary.keys() - added):
        if vocabulary[token] != f"[PAD{token}]":
            digest.update(f"{token}\0{vocabulary[token]}\0".encode())
    return digest.hexdigest()


class Sampling(Record, frozen=True):
    """What the draft needs to guess as the target decides: SamplingParams without text and bookkeeping."""

    seed: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    logit_bias: list[tuple[int, float]] = []
    end_ids: list[int] = []
    bad_word_ids: list[list[int]] = []
    noise: str = "philox"
    """What the target's choices are made with; a draft that does not know it declines."""


class AskOpen(Message, frozen=True, tag="ask"):
    """Whether the draft would take a sequence with a long text, before the text is sent."""

    seq: int
    epoch: int
    """That of the OPEN which may follow."""
    num_tokens: int
    prefix: bytes = b""
    """Identifies the start of the text, as `prefix_hashes` has it."""


class OfferOpen(Message, frozen=True, tag="offer"):
    """The draft keeps room for the sequence for `OFFER_SECONDS`. Its other answer is CLOSE."""

    seq: int
    epoch: int
    num_cached: int = 0
    """Leading tokens that the draft has read already, about."""


def prefix_hashes(tokens: Sequence[int] | Ints, most: int = MAX_CHUNKS) -> bytes:
    """A hash for each of the leading full chunks of a text, at most `most`, one after the other.

    Each is the first 8 bytes of the SHA-256 of the hash before it (none before the first) and of the chunk's
    tokens, packed as everywhere.
    """
    count = min(len(tokens) // PREFIX_CHUNK, most)
    packed, hashes = pack_ints(tokens[: count * PREFIX_CHUNK]), [b""]
    for start in range(0, len(packed), 4 * PREFIX_CHUNK):
        chunk = packed[start : start + 4 * PREFIX_CHUNK]
        hashes.append(next_prefix_hash(hashes[-1], chunk))
    return b"".join(hashes)


def next_prefix_hash(before: bytes, chunk: bytes) -> bytes:
    return sha256(before + chunk).digest()[:HASH_BYTES]


class Open(Message, frozen=True, tag="open"):
    """A sequence to speculate for, with all its tokens. Replaces an older epoch of the same sequence."""

    seq: int
    epoch: int
    tokens: bytes
    num_prompt: int
    max_len: int
    """Positions beyond this are never asked for."""
    lookahead: int
    sampling: Sampling


class OutcomeHeads(NamedTuple):
    """One column for each number that OUTCOME says of a sequence."""

    seq: Longs
    epoch: Longs
    n: Longs
    num_frames: Longs
    """How many frames of it arrived."""
    num_tokens: Longs


class Outcome(Message, frozen=True, tag="outcome"):
    """The n-th outcome of each sequence of a step: accepted tokens and the target's own."""

    heads: bytes
    """Packed int64: the columns of OutcomeHeads, one after the other."""
    tokens: bytes
    """Of all sequences, in their order."""

    @classmethod
    def of(cls, heads: OutcomeHeads, tokens: Sequence[int] | Ints) -> "Outcome":
        return cls(np.array(heads, dtype=_LONG).tobytes(), pack_ints(tokens))

    def columns(self) -> OutcomeHeads:
        return OutcomeHeads(*packed_columns(self.heads, len(OutcomeHeads._fields)))


class NodesHeads(NamedTuple):
    """One column for each number that NODES says of a sequence."""

    seq: Longs
    epoch: Longs
    number: Longs
    """Of this frame, from 0; a gap means that one is missing."""
    n: Longs
    """The last outcome the draft had applied: the acknowledgement."""
    root: Longs
    length: Longs
    """Tokens of the text up to the root."""
    num_nodes: Longs
    full: Longs
    """1: the whole tree; 0: what is new."""


class Nodes(Message, frozen=True, tag="nodes"):
    """New nodes of all trees of a step; siblings next to each other, numbered on, most likely first."""

    heads: bytes
    """Packed int64: the columns of NodesHeads, one after the other."""
    nodes: bytes
    """Packed int32: ids, then parents, then tokens, of all sequences in their order."""
    logprobs: bytes

    @classmethod
    def of(cls, parts: Sequence["TreePart"]) -> "Nodes":
        heads = [
            (each.seq, each.epoch, each.number, each.n, each.root, each.length, len(each.ids), each.full)
            for each in parts
        ]
        columns = (chain.from_iterable(getattr(each, name) for each in parts) for name in _NODE_COLUMNS)
        return cls(
            np.array(heads, dtype=_LONG).T.tobytes(),
            np.array([*chain.from_iterable(columns)], dtype=_INT).tobytes(),
            pack_floats([*chain.from_iterable(each.logprobs for each in parts)]),
        )

    def columns(self) -> NodesHeads:
        return NodesHeads(*packed_columns(self.heads, len(NodesHeads._fields)))

    def node_columns(self) -> Ints:
        """Three rows: ids, parents, tokens."""
        return unpack_ints(self.nodes).reshape(len(_NODE_COLUMNS), -1)


_NODE_COLUMNS = ("ids", "parents", "tokens")


@dataclass(frozen=True, slots=True)
class TreePart:
    """What NODES says of one sequence."""

    seq: int
    epoch: int
    number: int
    n: int
    root: int
    length: int
    ids: Sequence[int] = ()
    parents: Sequence[int] = ()
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    full: bool = False


class SaidNodes:
    """What NODES says of some sequences, as arrays, and how it hangs together."""

    def __init__(self, heads: NodesHeads, nodes: Ints, logprobs: Floats) -> None:
        self.heads, self.nodes, self.logprobs = heads, nodes, logprobs
        self.owners = np.arange(len(heads.seq)).repeat(heads.num_nodes)
        """Of each node: which of the sequences it belongs to."""
        self.firsts = heads.num_nodes.cumsum() - heads.num_nodes
        """Of each sequence, its first node."""
        parents = nodes[1]
        self.changes = np.ones(len(parents), np.bool_)
        self.changes[1:] = (parents[1:] != parents[:-1]) | (self.owners[1:] != self.owners[:-1])
        self.starts = np.flatnonzero(self.changes)
        """The first of each group of siblings."""

    def of(self, chosen: NDArray[np.bool_]) -> "SaidNodes":
        if chosen.all():
            return self
        mine = chosen.repeat(self.heads.num_nodes)
        heads = NodesHeads(*(column[chosen] for column in self.heads))
        return SaidNodes(heads, self.nodes[:, mine], self.logprobs[mine])


class Resync(Message, frozen=True, tag="resync"):
    """Something is missing. From the engine: send the whole tree. From the draft: open again."""

    seq: int
    epoch: int


class Close(Message, frozen=True, tag="close"):
    """The sequence is over; from the draft: declined, for the reason given."""

    seq: int
    epoch: int
    reason: str = ""
    may_return: bool = False
    """There was no room for it: once there is, it may be opened again."""


class Stats(Message, frozen=True, tag="stats"):
    """What the draft has done since it started; also its sign of life."""

    num_steps: int
    num_rows: int
    seconds: float
    """Spent in draft steps."""
    num_sequences: int
    kv_usage: float
    tenant: str = ""
    """By which name the draft knows the engine's key; empty where that has none."""
    num_own_rows: int = 0
    """Rows that the engine's tenant had of these, as long as one of its engines was there."""
    step_spans: list[tuple[float, float, int]] = []
    """Start, end and rows of steps since the last message, by the machine's monotonic clock."""
    free_sequences: int | None = None
    """Sequences that the draft can still take; None: unknown."""
    free_tokens: int | None = None
    """Tokens for which its KV cache has room; None: unknown."""
    drains: bool = False
    """It takes no new sequences."""


AnyMessage = Hello | AskOpen | OfferOpen | Open | Outcome | Nodes | Resync | Close | Stats


def pack_ints(values: Sequence[int] | Ints) -> bytes:
    return np.asarray(values, dtype=_INT).tobytes()


def pack_floats(values: Sequence[float] | Floats) -> bytes:
    return np.asarray(values, dtype=_FLOAT).tobytes()


def unpack_ints(packed: bytes) -> Ints:
    return np.frombuffer(packed, dtype=_INT)


def unpack_floats(packed: bytes) -> Floats:
    return np.frombuffer(packed, dtype=_FLOAT)


def packed_columns(packed: bytes, count: int) -> Longs:
    return np.frombuffer(packed, dtype=_LONG).reshape(count, -1)
