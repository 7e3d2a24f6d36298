"""Every message survives its way, and `decode` refuses whatever an honest peer does not send."""

import random
from collections.abc import Callable
from hashlib import sha256

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.draft.protocol import codec
from ssd.draft.protocol import messages as wire
from ssd.draft.protocol.codec import FrameError, decode, encode
from ssd.draft.protocol.messages import (
    AnyMessage,
    Close,
    Nodes,
    Open,
    Outcome,
    Resync,
    Sampling,
    TreePart,
    pack_floats,
    pack_ints,
    unpack_floats,
    unpack_ints,
)
from tests.draft.protocol import frames
from tests.draft.protocol.frames import VOCAB, each_kind
from tests.draft.protocol.fuzz_frames import Fuzz

replace: Callable[..., AnyMessage] = msgspec.structs.replace


def opening(**changes: object) -> Open:
    other: Callable[..., Open] = msgspec.structs.replace
    return other(frames.opening(), **changes)


def open_with(**changes: object) -> Open:
    """OPEN with other sampling parameters."""
    sampling: Callable[..., Sampling] = msgspec.structs.replace
    return opening(sampling=sampling(frames.sampling(), **changes))


def test_each_message_survives_its_way() -> None:
    assert decode(encode(each_kind()), vocab_size=VOCAB) == each_kind()
    assert decode(encode([]), vocab_size=VOCAB) == []


def test_packed_columns_survive_their_way() -> None:
    ints, floats = [0, -1, 2**31 - 1, -(2**31)], [0.0, -1.5, float("-inf")]
    assert unpack_ints(pack_ints(ints)).tolist() == ints
    assert unpack_floats(pack_floats(floats)).tolist() == floats
    assert pack_ints([1]) == b"\x01\x00\x00\x00"
    assert pack_floats(np.array([1.0], dtype=np.float32)) == b"\x00\x00\x80\x3f"


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_honest_nodes_survive_their_way(data: st.DataObject) -> None:
    parts = []
    for seq in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.integers(0, 40))
        steps = data.draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
        ids = np.cumsum([0, *steps])[1:].tolist()
        tokens = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=count, max_size=count))
        logprobs = data.draw(st.lists(st.floats(max_value=0.0, width=32), min_size=count, max_size=count))
        parents = [each - 1 for each in ids]
        parts.append(TreePart(seq, 2, 3, 4, 0, 9, ids, parents, tokens, logprobs, full=seq % 2 == 0))
    sent = Nodes.of(parts)
    (received,) = decode(encode([sent]), vocab_size=VOCAB)
    assert received == sent
    assert isinstance(received, Nodes)
    heads, (ids, parents, tokens) = received.columns(), received.node_columns()
    ends = np.cumsum(heads.num_nodes).tolist()
    for each, start, end in zip(parts, [0, *ends], ends, strict=False):
        assert [column[start:end].tolist() for column in (ids, parents, tokens)] == [
            each.ids,
            each.parents,
            each.tokens,
        ]
        assert unpack_floats(received.logprobs)[start:end].tolist() == each.logprobs
    assert heads.seq.tolist() == [each.seq for each in parts]
    assert heads.full.tolist() == [int(each.full) for each in parts]


MANY = wire.MAX_LIST + 1
FEW = pack_ints([11])

# Of each rule, a message that breaks it and no other: the frame cannot be read.
BROKEN: dict[str, AnyMessage] = {
    "nodes: seq below 0": frames.nodes(seq=-1),
    "nodes: seq too large": frames.nodes(seq=2**31),
    "nodes: a sequence twice": frames.nodes(seq=8),
    "nodes: epoch below 0": frames.nodes(epoch=-1),
    "nodes: epoch too large": frames.nodes(epoch=2**53 + 1),
    "nodes: number below 0": frames.nodes(number=-1),
    "nodes: number too large": frames.nodes(number=2**31),
    "nodes: n below 0": frames.nodes(n=-1),
    "nodes: n too large": frames.nodes(n=2**31),
    "nodes: root below 0": frames.nodes(root=-1),
    "nodes: root too large": frames.nodes(root=2**31, ids=(), parents=(), tokens=(), logprobs=()),
    "nodes: length below 0": frames.nodes(length=-1),
    "nodes: length too large": frames.nodes(length=2**31),
    "nodes: full is no truth": frames.nodes(full=2),
    "nodes: too many": frames.nodes(
        ids=range(11, wire.MAX_NODES + 12),
        parents=[10] * (wire.MAX_NODES + 1),
        tokens=[0] * (wire.MAX_NODES + 1),
        logprobs=[0.0] * (wire.MAX_NODES + 1),
    ),
    "nodes: no sequence": Nodes(b"", b"", b""),
    "nodes: too many sequences": Nodes.of(
        [TreePart(seq, 1, 0, 0, 0, 1) for seq in range(wire.MAX_SEQUENCES + 1)]
    ),
    "nodes: no whole heads": replace(frames.nodes(), heads=frames.nodes().heads[:-8]),
    "nodes: fewer parents": replace(frames.nodes(), nodes=frames.nodes().nodes[:-4]),
    "nodes: more than announced": replace(frames.nodes(), nodes=frames.nodes().nodes + bytes(12)),
    "nodes: fewer logprobs": replace(frames.nodes(), logprobs=FEW),
    "nodes: no whole number of columns": replace(frames.nodes(), nodes=frames.nodes().nodes + b"1"),
    "nodes: an id below 0": frames.nodes(ids=[-5, 12, 15], parents=[-6, 10, 10]),
    "nodes: ids fall": frames.nodes(ids=[11, 15, 12], parents=[10, 10, 10]),
    "nodes: an id twice": frames.nodes(ids=[11, 11, 12], parents=[10, 10, 10]),
    "nodes: the root's id": frames.nodes(ids=[10, 11, 12], parents=[9, 9, 9]),
    "nodes: a parent below 0": frames.nodes(parents=[10, -1, 12]),
    "nodes: its own parent": frames.nodes(parents=[10, 10, 15]),
    "nodes: a token below 0": frames.nodes(tokens=[0, -1, 4]),
    "nodes: a token too large": frames.nodes(tokens=[0, VOCAB, 4]),
    "nodes: a logprob above 0": frames.nodes(logprobs=[0.0, 0.1, -1.0]),
    "nodes: a logprob is NaN": frames.nodes(logprobs=[0.0, float("nan"), -1.0]),
    "outcome: seq below 0": frames.outcomes((-1, 3, 1, 0, 1), tokens=[0]),
    "outcome: seq too large": frames.outcomes((2**31, 3, 1, 0, 1), tokens=[0]),
    "outcome: a sequence twice": frames.outcomes((1, 3, 1, 0, 1), (1, 3, 2, 0, 1), tokens=[0, 0]),
    "outcome: epoch below 0": frames.outcomes((7, -1, 1, 0, 1), tokens=[0]),
    "outcome: epoch too large": frames.outcomes((7, 2**53 + 1, 1, 0, 1), tokens=[0]),
    "outcome: fewer tokens than announced": frames.outcomes((7, 3, 1, 0, 2), tokens=[1]),
    "outcome: no sequence": Outcome(b"", b""),
    "resync: seq below 0": Resync(-1, 3),
    "resync: epoch too large": Resync(7, 2**53 + 1),
    "close: seq too large": Close(2**31, 3),
    "close: epoch below 0": Close(7, -1),
    "close: reason too long": Close(7, 3, "x" * (wire.MAX_TEXT + 1)),
    "hello: tokenizer too long": replace(frames.hello(), tokenizer="x" * (wire.MAX_TEXT + 1)),
    "hello: name too long": replace(frames.hello(), name="x" * (wire.MAX_TEXT + 1)),
    "hello: instance too long": replace(frames.hello(), instance="x" * (wire.MAX_TEXT + 1)),
    "hello: refusal too long": replace(frames.hello(), refusal="x" * (wire.MAX_TEXT + 1)),
    "hello: vocab_size below 0": replace(frames.hello(), vocab_size=-1),
    "hello: vocab_size too large": replace(frames.hello(), vocab_size=2**31),
    "hello: max_model_len below 0": replace(frames.hello(), max_model_len=-1),
    "hello: version below 0": replace(frames.hello(), version=-1),
    "hello: oldest beyond version": replace(frames.hello(), oldest=wire.PROTOCOL_VERSION + 1),
    "ask: seq below 0": replace(frames.ask(), seq=-1),
    "ask: num_tokens below 0": replace(frames.ask(), num_tokens=-1),
    "ask: no whole hash": replace(frames.ask(), prefix=b"1234567"),
    "ask: too many hashes": replace(frames.ask(), prefix=bytes(8 * wire.MAX_CHUNKS + 8)),
    "offer: epoch below 0": wire.OfferOpen(7, -1),
    "offer: num_cached below 0": wire.OfferOpen(7, 3, -1),
    "stats: free_sequences below 0": replace(frames.stats(), free_sequences=-1),
    "stats: free_tokens too large": replace(frames.stats(), free_tokens=wire.MAX_COUNT + 1),
    "stats: too many spans": replace(frames.stats(), step_spans=[(0.0, 1.0, 1)] * MANY),
    "open: seq below 0": replace(frames.opening(), seq=-1),
    "open: seq too large": replace(frames.opening(), seq=2**31),
    "open: epoch below 0": replace(frames.opening(), epoch=-1),
    "open: epoch too large": replace(frames.opening(), epoch=2**53 + 1),
}
# The same of rules whose breach is one sequence's affair.
UNFIT: dict[str, Open | Outcome] = {
    "outcome: n below 0": frames.outcomes((7, 3, -1, 0, 1), tokens=[0]),
    "outcome: n too large": frames.outcomes((7, 3, 2**31, 0, 1), tokens=[0]),
    "outcome: num_frames below 0": frames.outcomes((7, 3, 1, -1, 1), tokens=[0]),
    "outcome: num_frames too large": frames.outcomes((7, 3, 1, 2**31, 1), tokens=[0]),
    "outcome: a token below 0": frames.outcomes((7, 3, 1, 0, 1), tokens=[-1]),
    "outcome: a token too large": frames.outcomes((7, 3, 1, 0, 1), tokens=[VOCAB]),
    "outcome: no tokens": frames.outcomes((7, 3, 1, 0, 0), tokens=[]),
    "outcome: too many tokens": frames.outcomes((7, 3, 1, 0, MANY), tokens=[1] * MANY),
    "open: no tokens": opening(tokens=b"", num_prompt=0),
    "open: no whole number of tokens": opening(tokens=b"\0\0\0\0\0", num_prompt=1),
    "open: too many tokens": opening(tokens=bytes(4 * wire.MAX_TOKENS + 4)),
    "open: a token below 0": opening(tokens=pack_ints([0, -1, 2])),
    "open: a token too large": opening(tokens=pack_ints([0, VOCAB, 2])),
    "open: num_prompt below 0": opening(num_prompt=-1),
    "open: num_prompt beyond the tokens": opening(num_prompt=4),
    "open: max_len below 0": opening(max_len=-1),
    "open: max_len too large": opening(max_len=2**31),
    "open: lookahead 0": opening(lookahead=0),
    "open: lookahead too large": opening(lookahead=65),
    "open: too many biases": open_with(logit_bias=[(1, 0.5)] * MANY),
    "open: too many end ids": open_with(end_ids=[1] * MANY),
    "open: too many bad words": open_with(bad_word_ids=[[1]] * MANY),
    "open: bad words too long": open_with(bad_word_ids=[[1] * codec.MAX_BAD_WORD_TOKENS, [1]]),
    "open: a biased token below 0": open_with(logit_bias=[(-1, 0.5)]),
    "open: a biased token too large": open_with(logit_bias=[(VOCAB, 0.5)]),
    "open: a bad word's token below 0": open_with(bad_word_ids=[[2, -1]]),
    "open: a bad word's token too large": open_with(bad_word_ids=[[2, VOCAB]]),
    "open: an end id below 0": open_with(end_ids=[-1]),
    "open: an end id too large": open_with(end_ids=[2**31]),
    "open: seed below 0": open_with(seed=-1),
    "open: temperature is NaN": open_with(temperature=float("nan")),
    "open: top_p 0": open_with(top_p=0.0),
    "open: repetition_penalty is infinite": open_with(repetition_penalty=float("inf")),
    "open: min_tokens below 0": open_with(min_tokens=-1),
    "open: a bias is NaN": open_with(logit_bias=[(1, float("nan"))]),
    "open: noise too long": open_with(noise="x" * (wire.MAX_TEXT + 1)),
}


@pytest.mark.parametrize("message", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_rule_is_refused(message: AnyMessage) -> None:
    with pytest.raises(FrameError):
        decode(encode([message]), vocab_size=VOCAB)
    with pytest.raises(FrameError):
        decode(encode([*each_kind(), message]), vocab_size=VOCAB)


@pytest.mark.parametrize("message", UNFIT.values(), ids=UNFIT.keys())
def test_what_is_wrong_for_one_sequence_is_read_and_named(message: Open | Outcome) -> None:
    (received,) = decode(encode([message]), vocab_size=VOCAB)
    if isinstance(received, Open):
        assert codec.fault_of_opening(received, VOCAB)
    else:
        assert isinstance(received, Outcome)
        assert codec.faults_of_outcome(received, VOCAB).keys() == {0}


def test_only_the_entry_that_breaks_a_rule_is_named() -> None:
    message = frames.outcomes((7, 3, 1, 0, 2), (8, 1, 1, 3, 1), (9, 1, 1, 0, 1), tokens=[0, 1, VOCAB, 2])
    assert codec.faults_of_outcome(message, VOCAB).keys() == {1}
    assert codec.faults_of_outcome(frames.outcome(), VOCAB) == {}
    assert codec.fault_of_opening(frames.opening(), VOCAB) == ""


def raw(*messages: object) -> bytes:
    return msgspec.msgpack.encode(list(messages))


FOREIGN = {
    "nothing": b"",
    "no list": msgspec.msgpack.encode("nodes"),
    "no message": raw(1),
    "an unknown kind": raw({"type": "exec", "seq": 1, "epoch": 2}),
    "no kind": raw({"seq": 1, "epoch": 2}),
    "a field too few": raw({"type": "resync", "seq": 1}),
    "a float for an int": raw({"type": "resync", "seq": 1.5, "epoch": 2}),
    "a string for an int": raw({"type": "resync", "seq": "1", "epoch": 2}),
    "text for bytes": raw({"type": "ask", "seq": 1, "epoch": 2, "num_tokens": 1, "prefix": 5}),
    "an int beyond 63 bits": raw({"type": "resync", "seq": 1, "epoch": 2**64 - 1}),
    "text that is no UTF-8": raw({"type": "close", "seq": 1, "epoch": 2, "reason": "??"}).replace(
        b"??", b"\xff\xfe"
    ),
    "an array for a map": raw(["resync", 1, 2]),
    "something behind the end": encode([Resync(1, 2)]) + b"\x00",
    "an array of 4 GiB": b"\xdd\xff\xff\xff\xff",
    "bytes of 4 GiB": b"\x91\x94\xa5nodes\xc6\xff\xff\xff\xff",
    "a hundred thousand lists in each other": b"\x91" * 100_000,
    "a frame too long": encode([Close(1, 2, "x" * wire.MAX_FRAME_BYTES)]),
    "too many messages": encode([Resync(1, 2)] * (wire.MAX_MESSAGES + 1)),
}


@pytest.mark.parametrize("frame", FOREIGN.values(), ids=FOREIGN.keys())
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(FrameError):
        decode(frame, vocab_size=VOCAB)


def with_a_new_field(message: AnyMessage) -> dict[str, object]:
    """As a later version might send it."""
    fields: dict[str, object] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return {"added": {"later": [1, 2]}, **fields, "more": b"later"}


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    later = raw(*map(with_a_new_field, each_kind()))
    assert decode(later, vocab_size=VOCAB) == each_kind()


def test_fields_that_a_later_version_adds_have_defaults_here() -> None:
    """What this version sends is read by one with a field more."""

    class LaterResync(Resync, frozen=True, tag="resync"):
        whole: bool = True

    [read] = msgspec.msgpack.decode(encode([Resync(1, 2)]), type=list[LaterResync])
    assert read == LaterResync(1, 2, whole=True)


def test_defaults_are_left_out() -> None:
    [fields] = msgspec.msgpack.decode(encode([Close(1, 2)]))
    assert fields == {"type": "close", "seq": 1, "epoch": 2}


def hello_of(version: int, oldest: int) -> wire.Hello:
    return wire.Hello(version, "same", VOCAB, "someone", "one", oldest=oldest)


@pytest.mark.parametrize(
    ("draft", "engine", "fault"),
    [
        ((4, 4), (4, 4), ""),
        ((4, 4), (5, 4), ""),
        ((5, 4), (4, 4), ""),
        ((6, 5), (7, 6), ""),
        ((4, 0), (5, 4), ""),
        ((4, 4), (6, 5), "install the engine's version of ssd, or a later one, on the draft's side"),
        ((6, 5), (4, 4), "install the draft's version of ssd, or a later one, on the engine's side"),
        ((4, 0), (5, 0), "install the engine's version of ssd, or a later one, on the draft's side"),
    ],
)
def test_both_sides_settle_on_a_version_or_say_which_side_to_update(
    draft: tuple[int, int], engine: tuple[int, int], fault: str
) -> None:
    found = wire.version_fault(draft=hello_of(*draft), engine=hello_of(*engine))
    assert found.endswith(fault)
    assert bool(found) == bool(fault)


def test_the_prefix_of_a_text_is_hashed_by_chunks() -> None:
    text = list(range(1000, 1200))
    first = sha256(pack_ints(text[:64])).digest()[:8]
    second = sha256(first + pack_ints(text[64:128])).digest()[:8]
    third = sha256(second + pack_ints(text[128:192])).digest()[:8]
    assert wire.prefix_hashes(text) == first + second + third
    assert wire.prefix_hashes(text, most=2) == first + second
    assert wire.prefix_hashes(text[:63]) == b""


def test_a_frame_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError, match="bytes: at most"):
        decode(bytes(wire.MAX_FRAME_BYTES + 1), vocab_size=VOCAB)


def test_the_largest_honest_frames_are_taken() -> None:
    count = wire.MAX_NODES
    largest = frames.nodes(
        ids=range(11, count + 11), parents=[10] * count, tokens=[0] * count, logprobs=[0.0] * count
    )
    longest: AnyMessage = opening(tokens=bytes(4 * wire.MAX_TOKENS))
    many = [Resync(1, 2)] * wire.MAX_MESSAGES
    for sent in ([largest], [longest], many):
        assert decode(encode(sent), vocab_size=VOCAB) == sent


def outcome_of(frame: bytes) -> list[AnyMessage] | None:
    """None: refused. Anything but FrameError gets through and fails the test."""
    try:
        return decode(frame, vocab_size=VOCAB)
    except FrameError:
        return None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_mean_something(frame: bytes) -> None:
    messages = outcome_of(frame)
    assert messages is None or decode(encode(messages), vocab_size=VOCAB) == messages


@settings(max_examples=500, deadline=None)
@given(
    kind=st.integers(0, len(each_kind()) - 1),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4), st.binary(max_size=6)), max_size=4),
)
def test_spoilt_frames_are_refused_or_mean_something(kind: int, edits: list[tuple[int, int, bytes]]) -> None:
    frame = encode([each_kind()[kind]])
    for place, num_lost, inserted in edits:
        place %= len(frame) + 1
        frame = frame[:place] + inserted + frame[place + num_lost :]
    messages = outcome_of(frame)
    assert messages is None or all(isinstance(message, wire.Message) for message in messages)


def test_fuzz_in_short() -> None:
    """The first inputs of the long fuzz: mirrors and sessions stay whole too."""
    fuzz = Fuzz(seed=random.Random(3).randrange(100))
    fuzz.run(15_000)
    assert fuzz.outcomes["frames taken"] > 500
    assert fuzz.outcomes["decoded"] > 2000
    assert fuzz.outcomes["refused"] > 2000
