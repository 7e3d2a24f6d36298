"""Frames for tests: one honest message of each kind, and ways to spoil a frame."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ssd.draft.protocol.messages import (
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    AnyMessage,
    AskOpen,
    Close,
    Hello,
    Nodes,
    OfferOpen,
    Open,
    Outcome,
    OutcomeHeads,
    Resync,
    Sampling,
    Stats,
    TreePart,
    pack_ints,
    prefix_hashes,
)
from tests.draft.client.one_mirror import ROW

VOCAB = 300

_SPLICES = (
    *(b"\x00", b"\xff", b"\xc0", b"\xc3", b"\x80", b"\x90", b"\xdf", b"\xc6", b"\xdd", b"\xd9"),
    *(b"\xa4type\xa5nodes", b"\xa3seq", b"\xa5nodes"),
)
# Headers that announce far more than follows: arrays, maps, bytes, strings, extensions of 4 GiB.
_HUGE = tuple(bytes([tag]) + b"\xff\xff\xff\xff" for tag in (0xDD, 0xDF, 0xC6, 0xDB, 0xC9))


def hello() -> Hello:
    return Hello(PROTOCOL_VERSION, "abc", VOCAB, "draft", "one", 2048, "", OLDEST_VERSION)


def ask() -> AskOpen:
    return AskOpen(7, 3, 200, prefix_hashes(range(200)))


def sampling() -> Sampling:
    return Sampling(
        seed=2**64 - 1,
        temperature=0.7,
        top_k=5,
        logit_bias=[(0, 1.5), (VOCAB - 1, -100.0)],
        end_ids=[1, VOCAB - 1],
        bad_word_ids=[[3], [4, VOCAB - 1]],
    )


def opening() -> Open:
    return Open(2**31 - 1, 0, pack_ints([0, 5, VOCAB - 1]), 3, 2**31 - 1, lookahead=64, sampling=sampling())


def outcomes(*rows: Sequence[int], tokens: Sequence[int]) -> Outcome:
    """Each row: seq, epoch, n, frames, tokens."""
    return Outcome.of(OutcomeHeads(*np.array(rows).T), tokens)


def outcome() -> Outcome:
    return outcomes((7, 2**53, 2**31 - 1, 0, 2), (8, 1, 0, 3, 1), tokens=[0, VOCAB - 1, 5])


def part(**changes: object) -> TreePart:
    """Root 10 with two children, and one below the second."""
    ids, parents, tokens, logprobs = [11, 12, 15], [10, 10, 12], [0, VOCAB - 1, 4], [0.0, -1.0, -9.5]
    honest = TreePart(7, 3, 0, 2, 10, 20, ids, parents, tokens, logprobs)
    return replace(honest, **changes)  # type: ignore[arg-type]


def nodes(**changes: object) -> Nodes:
    """Of two sequences."""
    return Nodes.of([part(seq=8, epoch=4, ids=(), parents=(), tokens=(), logprobs=()), part(**changes)])


def stats() -> Stats:
    spans = [(1.0, 1.5, 12), (1.5, 2.0, 12)]
    return Stats(5, 60, 1.25, 2, 0.5, "alice", 30, spans, free_sequences=3, free_tokens=4096, drains=True)


def each_kind() -> list[AnyMessage]:
    small: list[AnyMessage] = [Resync(7, 3), Close(7, 3, "too long"), ask(), OfferOpen(7, 3, 128)]
    return [hello(), opening(), outcome(), nodes(), *small, stats()]


def spoiled(frame: bytes, rng: random.Random) -> bytes:
    """The frame with one to three things done to it that no honest peer does."""
    spoilt = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(spoilt) + 1)
        match rng.randrange(6):
            case 0 if spoilt:
                spoilt[place % len(spoilt)] ^= 1 << rng.randrange(8)
            case 1:
                del spoilt[place:]
            case 2:
                del spoilt[place : place + rng.randint(1, 8)]
            case 3:
                spoilt[place:place] = rng.choice(_SPLICES) * rng.randint(1, 4)
            case 4:
                spoilt[place : place + 5] = rng.choice(_HUGE)
            case _:
                other = rng.randrange(len(spoilt) + 1)
                spoilt[place:place] = spoilt[other : other + rng.randint(1, 16)]
    return bytes(spoilt)


def hostile_nodes(
    rng: random.Random,
    *,
    number: int,
    n: int,
    length: int,
    next_id: int,
    root: int,
    known: list[int],
    is_out_of_sync: bool,
) -> Nodes:
    """Well-formed at first sight: ids, parents, numbers and counts near those that mean something."""
    count = rng.choice((0, 1, 2, 3, 4, 8, 30))
    start = max(0, next_id + rng.choice((0, 0, 0, 0, 0, 1, 3, -2, -6)))
    step = rng.choice((1, 1, 1, 1, 2, 2, 1 if rng.random() < 0.9 else 0))
    ids = [start + step * place for place in range(count)]
    parents = sorted(rng.choice((*known, root, root, *ids[:place])) for place in range(count))
    if rng.random() < 0.1:
        rng.shuffle(parents)
    least = -1 if rng.random() < 0.02 else 0
    tokens = [rng.randrange(least, VOCAB if rng.random() < 0.7 else 6) for _ in ids]
    logprobs = [rng.choice((-0.5, -1.0, 0.0, -float("inf"), -3e38)) for _ in ids]
    if rng.random() < 0.05:
        logprobs[-1:] = [rng.choice((float("nan"), float("inf"), 0.5))]
    part = TreePart(
        seq=rng.choice((ROW,) * 12 + (0, ROW + 1, 99)),
        epoch=rng.choice((1, 1, 1, 1, 1, 1, 1, 2)),
        number=max(0, number + rng.choice((0,) * 12 + (1, -1))),
        n=max(0, n + rng.choice((0, 0, 0, 0, -1, -2, 1))),
        root=rng.choice((root,) * 8 + (*known, start, rng.randrange(2**31))),
        length=max(0, length + rng.choice((0,) * 8 + (-1, -2, 1))),
        ids=ids,
        parents=parents,
        tokens=tokens,
        logprobs=logprobs[:count],
        full=rng.random() < (0.5 if is_out_of_sync else 0.1),
    )
    return Nodes.of([part])
