"""Frames from messages and back, and the rules that messages must keep.

A frame on the wire is a msgpack list of messages. The schema refuses unknown messages and fields of a wrong
type, and `decode` refuses what the schema cannot say: sizes, arrays of unlike length, sequences that cannot
be told apart. Such a frame costs its sender the connection.

What breaks a rule of one sequence, in OPEN or in an entry of OUTCOME, costs that sequence its drafts and
nobody else anything: the target checks before it sends a sequence (`sendable`), the draft before it accepts
one (`fault_of_opening`, `faults_of_outcome`). Knows messages; no sockets, no clock, no torch.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ssd.draft.protocol.messages import (
    HASH_BYTES,
    MAX_CHUNKS,
    MAX_COUNT,
    MAX_EPOCH,
    MAX_FRAME_BYTES,
    MAX_ID,
    MAX_LIST,
    MAX_MESSAGES,
    MAX_NODES,
    MAX_SEQUENCES,
    MAX_TEXT,
    MAX_TOKENS,
    AnyMessage,
    AskOpen,
    Close,
    Hello,
    Longs,
    Nodes,
    NodesHeads,
    OfferOpen,
    Open,
    Outcome,
    OutcomeHeads,
    Resync,
    Sampling,
    Stats,
    packed_columns,
    unpack_floats,
    unpack_ints,
)


class FrameError(ValueError):
    """The other side sent something that no honest peer of this version sends."""


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


_ANY = 2**64 - 1
_OUTCOME_LIMITS, _NODES_LIMITS = (
    np.array(largest, dtype=np.uint64)[:, None]
    for largest in (
        OutcomeHeads(MAX_ID, MAX_EPOCH, _ANY, _ANY, MAX_FRAME_BYTES),  # type: ignore[arg-type]
        NodesHeads(MAX_ID, MAX_EPOCH, MAX_ID, MAX_ID, MAX_ID, MAX_ID, MAX_NODES, 1),  # type: ignore[arg-type]
    )
)


def _check(message: AnyMessage, vocab_size: int) -> None:
    match message:
        case Nodes():
            _check_nodes(message, vocab_size)
        case Outcome():
            _check_outcome(message)
        case Open():
            _check_key(message.seq, message.epoch)
        case AskOpen():
            _check_key(message.seq, message.epoch)
            _check_range("num_tokens", [message.num_tokens], MAX_ID)
            _check_prefix(message.prefix)
        case OfferOpen():
            _check_key(message.seq, message.epoch)
            _check_range("num_cached", [message.num_cached], MAX_ID)
        case Resync() | Close():
            _check_key(message.seq, message.epoch)
            _check_count("reason", len(getattr(message, "reason", "")), 0, MAX_TEXT)
        case Hello():
            _check_hello(message)
        case Stats():
            _check_stats(message)


def _check_prefix(prefix: bytes) -> None:
    if len(prefix) % HASH_BYTES:
        raise FrameError("a hash of ASK's prefix is not whole")
    _check_count("hashes", len(prefix) // HASH_BYTES, 0, MAX_CHUNKS)


def _check_hello(message: Hello) -> None:
    for name in ("tokenizer", "name", "instance", "refusal"):
        _check_count(name, len(getattr(message, name)), 0, MAX_TEXT)
    _check_range("size", [message.vocab_size, message.max_model_len, message.version], MAX_ID)
    _check_range("oldest version", [message.oldest], message.version)


def _check_stats(message: Stats) -> None:
    _check_count("tenant", len(message.tenant), 0, MAX_TEXT)
    _check_count("step_spans", len(message.step_spans), 0, MAX_LIST)
    spans = message.step_spans
    counts = [message.num_steps, message.num_rows, message.num_sequences, message.num_own_rows]
    counts += [each for each in (message.free_sequences, message.free_tokens) if each is not None]
    _check_range("count", counts + [rows for _start, _end, rows in spans], MAX_COUNT)
    # NaN fails the comparisons.
    if not 0 <= message.kv_usage <= 1 or not 0 <= message.seconds <= MAX_COUNT:
        raise FrameError("a figure of STATS is no share, or no time")
    if not all(0 <= start <= end <= MAX_COUNT for start, end, _rows in spans):
        raise FrameError("a step of STATS ends before it starts, or never")


def _check_heads(packed: bytes, largest: NDArray[np.uint64]) -> Longs:
    """Of OUTCOME or NODES: columns within their ranges, each sequence once."""
    num_columns = len(largest)
    if not packed or len(packed) % (8 * num_columns):
        raise FrameError("the columns of a head are missing or of unlike length")
    columns = packed_columns(packed, num_columns)
    _check_count("sequences", columns.shape[1], 1, MAX_SEQUENCES)
    # As unsigned numbers negative ones are larger than any that is allowed.
    if (columns.view(np.uint64) > largest).any():
        raise FrameError("a number of a head is out of its range")
    seqs = columns[0]
    if len(seqs) > 1 and len(set(seqs.tolist())) < len(seqs):
        raise FrameError("a sequence is named twice")
    return columns


def _check_outcome(message: Outcome) -> None:
    counts = _check_heads(message.heads, _OUTCOME_LIMITS)[-1]
    if len(message.tokens) != 4 * counts.sum():
        raise FrameError("the tokens of OUTCOME are not as many as announced")


def _check_nodes(message: Nodes, vocab_size: int) -> None:
    heads = NodesHeads(*_check_heads(message.heads, _NODES_LIMITS))
    size = int(heads.num_nodes.sum())
    if len(message.nodes) != 12 * size or len(message.logprobs) != 4 * size:
        raise FrameError("the columns of NODES are of unlike length, or not as long as announced")
    if not size:
        return
    ids, parents, tokens = message.node_columns()
    if (parents.view(np.uint32) >= ids.view(np.uint32)).any():
        raise FrameError("a node of NODES is not younger than its parent, or has none")
    # Of each sequence the first id follows its root's, and each further one the one before.
    before = np.empty(size, np.int64)
    before[1:] = ids[:-1]
    some = heads.num_nodes > 0
    before[(np.cumsum(heads.num_nodes) - heads.num_nodes)[some]] = heads.root[some]
    if not (ids > before).all():
        raise FrameError("the ids of NODES do not ascend, or one is not younger than its root")
    if not (tokens.view(np.uint32) < vocab_size).all():
        raise FrameError("a token of NODES is not in the vocabulary")
    # NaN fails the comparison, and so does what is no probability.
    if not (unpack_floats(message.logprobs) <= 0.0).all():
        raise FrameError("a log-probability of NODES is no such thing")


def _check_key(seq: int, epoch: int) -> None:
    _check_range("seq", [seq], MAX_ID)
    _check_range("epoch", [epoch], MAX_EPOCH)


def _check_range(name: str, values: Sequence[int], largest: int) -> None:
    if values and (min(values) < 0 or max(values) > largest):
        raise FrameError(f"a {name} is not in 0…{largest}")


def _check_count(name: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        raise FrameError(f"{count} {name}: {least} to {most} are taken")


MAX_BAD_WORD_TOKENS = 8 * MAX_LIST
"""Of all words together: the draft looks for each of them at every node."""
MAX_LOOKAHEAD = 64
MAX_BIAS = 100.0
RANGES = {
    "seed": (0, 2**64 - 1),
    "temperature": (0.0, 1000.0),
    "top_k": (0, MAX_ID),
    "top_p": (5e-324, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "min_tokens": (0, MAX_ID),
}
"""Of each number of Sampling the least and the largest: those of ssd.sampling.SamplingParams."""

_sampling_decoder = msgspec.msgpack.Decoder(Sampling)


class UnsendableError(ValueError):
    """Sampling parameters that cannot be sent to a draft."""


def sendable(sampling: Sampling, vocab_size: int) -> Sampling:
    """The parameters in the form that may be sent to a draft with this vocabulary.

    Entries for tokens that the draft lacks are left out, since it never guesses them, and so are end ids and
    bad words beyond what a message holds: a guess may then be wrong. UnsendableError where the rest breaks a
    rule.
    """
    try:
        kept = msgspec.structs.replace(
            sampling,
            logit_bias=[each for each in sampling.logit_bias if 0 <= each[0] < vocab_size],
            end_ids=[each for each in sampling.end_ids if 0 <= each < vocab_size][:MAX_LIST],
            bad_word_ids=_fitting_words(sampling.bad_word_ids, vocab_size),
        )
        # Encode now: an error later would cost the other sequences of the frame as well.
        kept = _sampling_decoder.decode(msgspec.msgpack.encode(kept))
    except (msgspec.MsgspecError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise UnsendableError(f"its parameters cannot be sent: {error}") from error
    fault = fault_of_sampling(kept, vocab_size)
    if fault:
        raise UnsendableError(fault)
    return kept


def _fitting_words(words: Iterable[list[int]], vocab_size: int) -> list[list[int]]:
    kept, left = list[list[int]](), MAX_BAD_WORD_TOKENS
    for word in words:
        if not word or min(word) < 0 or max(word) >= vocab_size:
            continue
        if len(kept) == MAX_LIST or len(word) > left:
            break
        kept.append(word)
        left -= len(word)
    return kept


def fault_of_sampling(sampling: Sampling, vocab_size: int) -> str:
    """What is wrong with the parameters of a sequence; empty: nothing."""
    for name, (least, most) in RANGES.items():
        # NaN fails the comparison.
        if not least <= getattr(sampling, name) <= most:
            return f"{name}={getattr(sampling, name)} is not in {least:g}…{most:g}"
    for name in ("logit_bias", "end_ids", "bad_word_ids"):
        if len(getattr(sampling, name)) > MAX_LIST:
            return f"{len(getattr(sampling, name))} {name}: at most {MAX_LIST} are taken"
    if len(sampling.noise) > MAX_TEXT:
        return f"the name of its noise is longer than {MAX_TEXT} characters"
    words = [token for word in sampling.bad_word_ids for token in word]
    if len(words) > MAX_BAD_WORD_TOKENS:
        return f"{len(words)} tokens of bad words: at most {MAX_BAD_WORD_TOKENS} are taken"
    if not all(-MAX_BIAS <= bias <= MAX_BIAS for _token, bias in sampling.logit_bias):
        return f"a bias is not in {-MAX_BIAS:g}…{MAX_BIAS:g}"
    named = [token for token, _bias in sampling.logit_bias] + words
    if named and (min(named) < 0 or max(named) >= vocab_size):
        return "logit_bias or bad_word_ids name a token that is not in the vocabulary"
    if sampling.end_ids and (min(sampling.end_ids) < 0 or max(sampling.end_ids) > MAX_ID):
        return f"an end id is not in 0…{MAX_ID}"
    return ""


def without_foreign_ends(message: Open, vocab_size: int) -> Open:
    """Without end ids that the draft lacks: older engines send them, and nothing ends with them."""
    ends = [each for each in message.sampling.end_ids if each < vocab_size]
    if len(ends) == len(message.sampling.end_ids):
        return message
    sampling = msgspec.structs.replace(message.sampling, end_ids=ends)
    return msgspec.structs.replace(message, sampling=sampling)


def fault_of_opening(message: Open, vocab_size: int) -> str:
    """Why a draft cannot take the sequence in; empty: it can, as far as the message says."""
    packed = message.tokens
    if not packed or len(packed) % 4 or len(packed) // 4 > MAX_TOKENS:
        return f"a text of 1 to {MAX_TOKENS} tokens is taken"
    tokens = unpack_ints(packed)
    if not (tokens.view(np.uint32) < vocab_size).all():
        return "its text holds a token that is not in the vocabulary"
    if not 0 <= message.num_prompt <= len(tokens):
        return "its prompt is longer than its text"
    if not 0 <= message.max_len <= MAX_ID:
        return f"max_len={message.max_len} is not in 0…{MAX_ID}"
    if not 1 <= message.lookahead <= MAX_LOOKAHEAD:
        return f"lookahead={message.lookahead} is not in 1…{MAX_LOOKAHEAD}"
    return fault_of_sampling(message.sampling, vocab_size)


def faults_of_outcome(message: Outcome, vocab_size: int) -> dict[int, str]:
    """Of the entries that break a rule, by their places: what is wrong."""
    heads, tokens = message.columns(), unpack_ints(message.tokens)
    faults = dict[int, str]()
    numbers = np.maximum(heads.n.view(np.uint64), heads.num_frames.view(np.uint64))
    strange = tokens.view(np.uint32) >= vocab_size
    if strange.any():
        owners = np.arange(len(heads.seq)).repeat(heads.num_tokens)
        faults.update(dict.fromkeys(owners[strange].tolist(), "an outcome's token is not in the vocabulary"))
    for wrong, reason in (
        (numbers > MAX_ID, f"an outcome's number is not in 0…{MAX_ID}"),
        ((heads.num_tokens < 1) | (heads.num_tokens > MAX_LIST), f"an outcome has 1 to {MAX_LIST} tokens"),
    ):
        if wrong.any():
            faults.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), reason))
    return faults
