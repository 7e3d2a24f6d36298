"""What engine and draft say to each other: typed, versioned, checked on arrival.

A frame on the wire is a msgpack list of messages. The schema refuses what it does not know,
and `decode` refuses what the schema cannot say: sizes, ranges, arrays of unlike length. Nothing
here knows sockets. Arrays travel as packed little-endian int32 and float32.

    engine → draft   HELLO, OPEN, OUTCOME, RESYNC (send me your tree), CLOSE
    draft → engine   HELLO, NODES, RESYNC (send me your tokens), CLOSE (declined), STATS
"""

from collections.abc import Sequence
from operator import lt
from struct import unpack as _unpack

import msgspec
import numpy as np

from ssd.draft.tree import Floats, Ints

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 4 << 20
MAX_MESSAGES = 1024
MAX_NODES = 4096
MAX_ID = 2**31 - 1
MAX_TOKENS = 1 << 19
MAX_LIST = 1024
MAX_TEXT = 1000

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")


class FrameError(ValueError):
    """The other side sent something that no honest peer of this version sends."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The common root; a message is an array whose first entry is its tag."""


class Hello(Message, frozen=True, tag="hello"):
    """First word of both sides. The draft's carries a refusal where the two do not fit."""

    version: int
    tokenizer: str
    """Fingerprint of what each token id means."""
    vocab_size: int
    name: str
    instance: str
    """Drawn at start: another one means that whoever was there is gone, with everything it knew."""
    max_model_len: int = 0
    refusal: str = ""


class Sampling(Message, frozen=True, tag="sampling"):
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
    ratio: bool = False
    """Guesses are drawn, and sent with what they were drawn from, for ratio acceptance."""
    saguaro: float = 1.0


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


class Outcome(Message, frozen=True, tag="outcome"):
    """The n-th outcome of a sequence: accepted tokens and the target's own, and how many frames arrived."""

    seq: int
    epoch: int
    n: int
    tokens: list[int]
    num_frames: int


class Nodes(Message, frozen=True, tag="nodes"):
    """New nodes of a tree, children next to each other and most likely first; `full`: the whole tree."""

    seq: int
    epoch: int
    number: int
    """Of this frame, from 0; a gap means that one is missing."""
    n: int
    """The last outcome the draft had applied: the acknowledgement."""
    root: int
    ids: bytes
    parents: bytes
    tokens: bytes
    logprobs: bytes
    full: bool = False
    drawn: list["Drawn"] = []
    """Under ratio acceptance: of each parent among these, what its first child was drawn from."""


class Drawn(Message, frozen=True, tag="drawn"):
    """A sparse distribution, as in sampling/ratio.py: packed token ids and weights, largest first."""

    parent: int
    tokens: bytes
    weights: bytes


class Resync(Message, frozen=True, tag="resync"):
    """Something is missing. From the engine: send the whole tree. From the draft: open again."""

    seq: int
    epoch: int


class Close(Message, frozen=True, tag="close"):
    """The sequence is over; from the draft: declined, for the reason given."""

    seq: int
    epoch: int
    reason: str = ""


class Stats(Message, frozen=True, tag="stats"):
    """What the draft has done since it started; also its sign of life."""

    num_steps: int
    num_rows: int
    seconds: float
    """Spent in draft steps."""
    num_sequences: int
    kv_usage: float
    step_spans: list[tuple[float, float, int]] = []
    """Start, end and rows of steps since the last message, by the machine's monotonic clock."""


AnyMessage = Hello | Open | Outcome | Nodes | Resync | Close | Stats

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyMessage])


def encode(messages: Sequence[AnyMessage]) -> bytes:
    return _encoder.encode(list(messages))


def decode(frame: bytes, *, vocab_size: int) -> list[AnyMessage]:
    """The messages of a frame, or FrameError."""
    if len(frame) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(frame)} bytes: at most {MAX_FRAME_BYTES} are taken")
    try:
        messages = _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a frame of this protocol: {error}") from error
    if len(messages) > MAX_MESSAGES:
        raise FrameError(f"{len(messages)} messages in a frame: at most {MAX_MESSAGES} are taken")
    for message in messages:
        _check(message, vocab_size)
    return messages


def pack_ints(values: Sequence[int] | Ints) -> bytes:
    return np.asarray(values, dtype=_INT).tobytes()


def pack_floats(values: Sequence[float] | Floats) -> bytes:
    return np.asarray(values, dtype=_FLOAT).tobytes()


def unpack_ints(packed: bytes) -> Ints:
    return np.frombuffer(packed, dtype=_INT)


def unpack_floats(packed: bytes) -> Floats:
    return np.frombuffer(packed, dtype=_FLOAT)


def listed_ints(packed: bytes) -> list[int]:
    """For the few numbers of a step's nodes: arrays would cost more to make than to read."""
    return [*_unpack(f"<{len(packed) // 4}i", packed)]


def listed_floats(packed: bytes) -> list[float]:
    return [*_unpack(f"<{len(packed) // 4}f", packed)]


def _check(message: AnyMessage, vocab_size: int) -> None:
    match message:
        case Nodes():
            _check_nodes(message, vocab_size)
        case Outcome():
            _check_key(message.seq, message.epoch)
            _check_range("n", [message.n, message.num_frames], MAX_ID)
            _check_range("token", message.tokens, vocab_size - 1)
            _check_count("tokens", len(message.tokens), 1, MAX_LIST)
        case Open():
            _check_open(message, vocab_size)
        case Resync() | Close():
            _check_key(message.seq, message.epoch)
            _check_count("reason", len(getattr(message, "reason", "")), 0, MAX_TEXT)
        case Hello():
            _check_hello(message)
        case Stats():
            _check_count("step_spans", len(message.step_spans), 0, MAX_LIST)


def _check_hello(message: Hello) -> None:
    for name in ("tokenizer", "name", "instance", "refusal"):
        _check_count(name, len(getattr(message, name)), 0, MAX_TEXT)
    _check_range("size", [message.vocab_size, message.max_model_len, message.version], MAX_ID)


def _check_nodes(message: Nodes, vocab_size: int) -> None:
    _check_key(message.seq, message.epoch)
    _check_range("number", [message.number, message.n, message.root], MAX_ID)
    size = len(message.ids)
    _check_count("nodes", size // 4, 0, MAX_NODES)
    if size % 4 or {len(message.parents), len(message.tokens), len(message.logprobs)} != {size}:
        raise FrameError("the columns of NODES are of unlike length")
    _check_count("drawn", len(message.drawn), 0, MAX_NODES)
    for drawn in message.drawn:
        _check_drawn(drawn, vocab_size)
    if not size:
        return
    ids, tokens, parents = (listed_ints(each) for each in (message.ids, message.tokens, message.parents))
    if ids[0] < 0 or min(parents) < 0 or not all(map(lt, ids, ids[1:])):
        raise FrameError("the ids of NODES are negative or do not ascend")
    if ids[0] <= message.root:
        raise FrameError("a node of NODES is not younger than its root")
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        raise FrameError("a token of NODES is not in the vocabulary")
    # NaN fails the comparison, and so does what is no probability.
    if not all(logprob <= 0.0 for logprob in listed_floats(message.logprobs)):
        raise FrameError("a log-probability of NODES is no such thing")


def _check_drawn(drawn: Drawn, vocab_size: int) -> None:
    size = len(drawn.tokens)
    if not size or size % 4 or len(drawn.weights) != size:
        raise FrameError("the columns of a distribution are empty or of unlike length")
    _check_count("weights", size // 4, 1, MAX_LIST)
    tokens, weights = unpack_ints(drawn.tokens), unpack_floats(drawn.weights)
    if tokens.min() < 0 or tokens.max() >= vocab_size or len(set(tokens.tolist())) != len(tokens):
        raise FrameError("the tokens of a distribution are not in the vocabulary, or repeat")
    if not ((weights > 0) & np.isfinite(weights)).all():
        raise FrameError("a weight of a distribution is no such thing")


def _check_open(message: Open, vocab_size: int) -> None:
    _check_key(message.seq, message.epoch)
    if not message.tokens or len(message.tokens) % 4 or len(message.tokens) // 4 > MAX_TOKENS:
        raise FrameError(f"OPEN holds 1 to {MAX_TOKENS} packed tokens")
    tokens = unpack_ints(message.tokens)
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise FrameError("a token of OPEN is not in the vocabulary")
    _check_range("num_prompt", [message.num_prompt], len(tokens))
    _check_range("max_len", [message.max_len], MAX_ID)
    _check_range("lookahead", [message.lookahead - 1], 63)
    sampling = message.sampling
    for name in ("logit_bias", "end_ids", "bad_word_ids"):
        _check_count(name, len(getattr(sampling, name)), 0, MAX_LIST)
    biased = [token for token, _bias in sampling.logit_bias]
    words = [token for word in sampling.bad_word_ids for token in word]
    _check_count("bad_word_ids", len(words), 0, 64 * MAX_LIST)
    _check_range("token", biased + words, vocab_size - 1)
    _check_range("end id", sampling.end_ids, MAX_ID)
    _check_range("seed", [sampling.seed], 2**64 - 1)
    if not 0 < sampling.saguaro <= 1:
        raise FrameError("saguaro is not in (0, 1]")


def _check_key(seq: int, epoch: int) -> None:
    _check_range("key", [seq, epoch], 2**53)


def _check_range(name: str, values: Sequence[int], largest: int) -> None:
    if values and (min(values) < 0 or max(values) > largest):
        raise FrameError(f"a {name} is not in 0…{largest}")


def _check_count(name: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        raise FrameError(f"{count} {name}: {least} to {most} are taken")
