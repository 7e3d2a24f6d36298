"""ASK and OFFER: a draft says whether it has room before a text is sent, and keeps that room for a second."""

from typing import TypeVar

from benchmarks.ruled import BLOCK, CONTEXT, hello
from ssd.draft.protocol.codec import decode, encode
from ssd.draft.protocol.messages import (
    OFFER_SECONDS,
    AnyMessage,
    AskOpen,
    Close,
    Nodes,
    OfferOpen,
    Open,
    Sampling,
    Stats,
    pack_ints,
    prefix_hashes,
)
from tests.draft.crowd import Crowd, Spoke

Kind = TypeVar("Kind", bound=AnyMessage)

TEXT = [2 + (7 * place) % 390 for place in range(200)]


class Peer:
    """An engine that sends what a test says."""

    def __init__(self, crowd: Crowd, name: str, key: str | None = None) -> None:
        self._crowd, self.spoke = crowd, Spoke(crowd.hub, name.encode(), name if key is None else key)
        self.spoke.send(encode([hello(name)]))
        self.heard()

    def heard(self, *sent: AnyMessage, turns: int = 1) -> list[AnyMessage]:
        """What the draft answers within some turns."""
        if sent:
            self.spoke.send(encode(sent))
        heard = list[AnyMessage]()
        for _ in range(turns):
            self._crowd.service.turn(0.0)
            while (frame := self.spoke.receive(0.0)) is not None:
                heard += decode(frame, vocab_size=400)
        self._crowd.service.check_integrity()
        return heard

    def ask(self, seq: int, tokens: list[int] = TEXT, *, epoch: int = 1) -> OfferOpen | Close:
        message = AskOpen(seq, epoch, len(tokens), prefix_hashes(tokens))
        [answer] = [each for each in self.heard(message) if isinstance(each, OfferOpen | Close)]
        assert (answer.seq, answer.epoch) == (seq, epoch)
        return answer

    def open(self, seq: int, tokens: list[int] = TEXT, *, epoch: int = 1) -> Close | None:
        """None: it was not declined."""
        text = pack_ints(tokens)
        message = Open(seq, epoch, text, len(tokens), CONTEXT, lookahead=4, sampling=Sampling(seed=1))
        return next(iter(of_kind(Close, self.heard(message))), None)

    def stats(self) -> Stats:
        return of_kind(Stats, self.heard(Close(99, 1)))[-1]


def of_kind(kind: type[Kind], messages: list[AnyMessage]) -> list[Kind]:
    return [each for each in messages if isinstance(each, kind)]


def crowd_of(sequences: int = 4, num_blocks: int = 512, weights: dict[str, float] | None = None) -> Crowd:
    return Crowd(weights, sequences=sequences, num_blocks=num_blocks)


def pass_seconds(crowd: Crowd, seconds: float) -> None:
    crowd.model.seconds += seconds


def test_an_offer_keeps_a_tree_until_the_text_comes() -> None:
    crowd = crowd_of(sequences=2)
    first, second = Peer(crowd, "first", "ours"), Peer(crowd, "second", "ours")
    assert first.ask(1) == OfferOpen(1, 1)
    assert first.stats().free_sequences == 1
    assert second.open(1) is None
    declined = second.open(2)
    assert declined is not None
    assert declined.may_return
    assert first.open(1) is None
    assert first.stats().free_sequences == 0


def test_an_offer_ends_after_its_time() -> None:
    crowd = crowd_of(sequences=1)
    first, second = Peer(crowd, "first", "ours"), Peer(crowd, "second", "ours")
    first.ask(1)
    pass_seconds(crowd, 0.9 * OFFER_SECONDS)
    assert second.open(1) is not None
    pass_seconds(crowd, 0.2 * OFFER_SECONDS)
    assert second.open(1, epoch=2) is None


def test_an_offer_keeps_blocks_too() -> None:
    crowd = crowd_of(num_blocks=20)
    first, second = Peer(crowd, "first", "ours"), Peer(crowd, "second", "ours")
    assert first.stats().free_tokens == 20 * BLOCK
    assert isinstance(first.ask(1), OfferOpen)
    num_kept = -(-len(TEXT) // BLOCK)
    assert first.stats().free_tokens == (20 - num_kept) * BLOCK
    others = [3] * 150
    assert second.open(1, others) is not None
    assert first.open(1) is None
    assert second.open(1, others[: (20 - num_kept) * BLOCK - 1], epoch=2) is None


def test_what_does_not_fit_is_declined_before_its_text_is_sent() -> None:
    crowd = crowd_of(sequences=1, num_blocks=20)
    peer = Peer(crowd, "one")
    too_long = peer.ask(1, [3] * (CONTEXT - 1))
    assert isinstance(too_long, Close)
    assert not too_long.may_return
    assert isinstance(peer.ask(2, []), Close)
    no_blocks = peer.ask(3, [3] * (20 * BLOCK + 1))
    assert isinstance(no_blocks, Close)
    assert no_blocks.may_return
    assert peer.open(4) is None
    no_tree = peer.ask(5)
    assert isinstance(no_tree, Close)
    assert no_tree.may_return


def test_an_offer_says_how_much_of_the_text_is_cached_for_its_tenant_only() -> None:
    crowd = crowd_of()
    reader, friend, stranger = Peer(crowd, "a", "ours"), Peer(crowd, "b", "ours"), Peer(crowd, "c", "theirs")
    reader.open(1)
    reader.heard(turns=8)
    assert friend.ask(1) == OfferOpen(1, 1, 192)
    assert friend.ask(2, TEXT[:100]) == OfferOpen(2, 1, 64)
    assert friend.ask(3, [*TEXT[:130], 5, *TEXT[131:]]) == OfferOpen(3, 1, 128)
    assert stranger.ask(1) == OfferOpen(1, 1, 0)


def test_a_tenant_with_less_than_its_share_takes_the_room_of_an_offer() -> None:
    crowd = crowd_of(sequences=3)
    many, few = Peer(crowd, "many"), Peer(crowd, "few")
    for seq in range(3):
        assert isinstance(many.ask(seq), OfferOpen)
    assert isinstance(many.ask(3), Close)
    assert few.open(1) is None
    # The youngest offer was withdrawn: its text finds no room.
    assert [many.open(seq) is None for seq in range(3)] == [True, True, False]


def test_a_draft_that_drains_takes_no_new_sequences_and_keeps_the_open_ones() -> None:
    crowd = crowd_of()
    peer = Peer(crowd, "one")
    peer.open(1)
    assert not peer.stats().drains
    crowd.service.drains = True
    assert peer.stats().drains
    assert peer.open(2) is not None
    assert isinstance(peer.ask(3), Close)
    assert peer.open(1, epoch=2) is None
    assert of_kind(Nodes, peer.heard(turns=4))
