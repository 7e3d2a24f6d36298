"""Checks a target: plays a draft that guesses, loses frames, declines, refuses and hangs up.

The target generates texts meanwhile, over and over. Whatever it sends is checked by all rules; every message
to it has fields that it does not know. Knows the protocol and how long it may take; no engine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ssd.draft.conformance.report import Report
from ssd.draft.conformance.sequences import broken_rule
from ssd.draft.protocol.codec import FrameError, decode, encode, fault_of_opening, faults_of_outcome
from ssd.draft.protocol.messages import (
    MAX_ID,
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
    Resync,
    Stats,
    TreePart,
    unpack_ints,
)
from ssd.draft.protocol.sockets import DraftSocket, Heard, SocketError

_QUIET_SECONDS = 0.3
"""Within this time frames that are on their way arrive."""
_SECONDS_BEFORE_RETURN = 2.0
"""A refused target that comes back within this time has not waited."""


@dataclass
class FollowedText:
    """A sequence of the target, as the played draft has it."""

    epoch: int
    text: list[int]
    n: int = 0
    num_sent: int = 0
    num_counted: int = 0
    most_counted: int | None = None
    """A frame was left out: so many may be counted until the whole tree is sent."""
    root: int = 0
    largest: int = 0
    children: dict[int, dict[int, int]] = field(default_factory=dict)
    closed_at: float | None = None
    awaits_text: bool = False
    """It was asked to be opened again."""

    def advance(self, tokens: Sequence[int]) -> None:
        self.n += 1
        self.text.extend(tokens)
        node: int | None = self.root
        for token in tokens:
            node = self.children.get(node, {}).get(token) if node is not None else None
        self.largest += node is None
        self.root = self.largest if node is None else node

    def row(self, seq: int, **changes: Any) -> TreePart:
        """The next frame: two tokens that followed the last time, if the root has no children yet."""
        ids, tokens = list[int](), list[int]()
        if not self.children.get(self.root):
            last = self.text[-1]
            places = [place for place in range(len(self.text) - 2) if self.text[place] == last]
            tokens = self.text[places[-1] + 1 : places[-1] + 3] if places else [last]
            ids = [self.largest + 1 + place for place in range(len(tokens))]
        parents = [self.root, *ids][: len(ids)]
        for parent, token, node in zip(parents, tokens, ids, strict=True):
            self.children[parent] = {token: node}
        self.largest = max([self.largest, *ids])
        number, self.num_sent = self.num_sent, self.num_sent + 1
        row = TreePart(
            *(seq, self.epoch, number, self.n, self.root, len(self.text)),
            *(ids, parents, tokens, [-0.5] * len(ids)),
        )
        return replace(row, **changes)


class TargetChecks:
    def __init__(self, link: DraftSocket, report: Report, *, patience: float = 60.0) -> None:
        """`patience`: seconds within which the target does what it should, such as connecting."""
        self._link, self.report, self._patience = link, report, patience
        self._peer: bytes | None = None
        self._num_connections = 0
        self._target: Hello | None = None
        self._draft: Hello | None = None
        """What this side has answered; None: nothing yet."""
        self._texts: dict[int, FollowedText] = {}
        self._epochs: dict[int, int] = {}
        """The highest of each seq."""
        self._skips = False
        """The next frame of nodes is left out."""
        self._num_whole = 0
        """Whole trees that were asked for."""
        self._was_refused = False

    def run(self) -> None:
        if not self.connects():
            return
        for check in (
            self.greets,
            self.counts_frames,
            self.misses_a_frame,
            self.sends_the_text_again,
            self.is_declined,
            self.gets_nonsense,
            self.is_forgotten,
            self.fits_into_the_draft,
            self.is_refused,
        ):
            check()

    def connects(self) -> bool:
        is_there = self._comes_back(0)
        self.report.note(3, "" if is_there else f"no target has connected within {self._patience:.0f} s")
        return is_there

    def greets(self) -> None:
        self._serve(lambda: False, _QUIET_SECONDS)  # What comes before our HELLO breaks R3.
        self._greet(version=PROTOCOL_VERSION + 1, oldest=OLDEST_VERSION)
        opens = self._serve(lambda: bool(self._texts))
        self.report.note(4, "" if opens else "nothing is opened with a draft that speaks one version more")

    def counts_frames(self) -> None:
        counts = self._serve(lambda: any(each.num_counted >= 4 for each in self._texts.values()))
        self.report.note(18, "" if counts else "the frames that it takes in are not counted")
        self.report.note(2, "" if counts else "messages with further fields are not taken in")

    def misses_a_frame(self) -> None:
        for seq, text in [*self._texts.items()]:
            # Of an epoch that is not open: to be ignored.
            self._send(Nodes.of([text.row(seq, epoch=text.epoch + 1000)]))
            text.num_sent -= 1
        self._skips = True
        asks = self._serve(lambda: bool(self._num_whole))
        self.report.note(29, "" if asks else "a missing frame does not cause RESYNC")
        counts = self._serve(lambda: any(each.num_counted >= 4 for each in self._texts.values()))
        self.report.note(29, "" if counts else "frames are not counted after the whole tree was sent")

    def sends_the_text_again(self) -> None:
        def asked() -> bool:
            for each in self._texts.values():
                each.awaits_text |= each.n >= 2
            return 20 in self.report.kept | self.report.broken

        opens = self._serve(asked)
        self.report.note(20, "" if opens else "RESYNC is not answered with OPEN")
        for each in self._texts.values():
            each.awaits_text = False

    def is_declined(self) -> None:
        self._serve(lambda: bool(self._texts))
        for seq, text in self._texts.items():
            text.closed_at = time.monotonic()
            self._send(Close(seq, text.epoch, "declined by the conformance kit"))
        self._serve(lambda: False, 4 * _QUIET_SECONDS)
        self.report.note(14)

    def gets_nonsense(self) -> None:
        seen, before = self._num_connections, sum(each.n for each in self._texts.values())
        for frame in (b"", b"\xc1", msgspec.msgpack.encode([{"type": "unknown"}])):
            self._send_frame(frame)
        lives = self._serve(lambda: self._lives(seen, before))
        self.report.note(2, "" if lives else "it does not survive an invalid frame")

    def _lives(self, num_connections: int, num_outcomes: int) -> bool:
        goes_on = sum(each.n for each in self._texts.values()) > num_outcomes
        return goes_on or self._num_connections > num_connections

    def is_forgotten(self) -> None:
        comes = self._hangs_up()
        self.report.note(7, "" if comes else "after a second HELLO it does not connect anew")
        self._greet()
        opens = self._serve(lambda: bool(self._texts))
        self.report.note(7, "" if opens else "after a second HELLO it opens nothing again")

    def fits_into_the_draft(self) -> None:
        """Its openings are checked by what the draft says of itself."""
        for rule, limits in ((11, {"max_model_len": 4}), (8, {"vocab_size": 2})):
            if not self._hangs_up():
                return
            self._greet(**limits)
            self._serve(lambda: False, 1.0)
            self.report.note(rule)

    def is_refused(self) -> None:
        if not self._hangs_up():
            return
        self._greet(refusal="refused by the conformance kit")
        self._serve(lambda: False, _QUIET_SECONDS)
        self._was_refused, seen = True, self._num_connections
        self._serve(lambda: False, _SECONDS_BEFORE_RETURN)
        is_back = self._num_connections > seen
        self.report.note(6, "it comes back at once" if is_back else "")

    def _serve(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Drafts until the condition holds, or the time is over."""
        ends = time.monotonic() + (self._patience if seconds is None else seconds)
        while not until() and time.monotonic() < ends:
            heard = self._link.receive(0.02)
            if heard is not None:
                self._take(heard)
        return until()

    def _hangs_up(self) -> bool:
        """Sends a second HELLO on a connection that works. Whether the target connects anew."""
        self._serve(lambda: False, _QUIET_SECONDS)
        while True:
            if self._draft is None:  # What came before has cost the connection.
                self._greet()
                self._serve(lambda: bool(self._texts))
            seen = self._num_connections
            was_there, comes = self._send(self._hello()), self._comes_back(seen)
            if was_there or not comes:
                return comes

    def _comes_back(self, seen: int) -> bool:
        return self._serve(lambda: self._num_connections > seen)

    def _hello(self, **changes: Any) -> Hello:
        assert self._target is not None
        mine = Hello(
            PROTOCOL_VERSION,
            self._target.tokenizer,
            self._target.vocab_size,
            "the conformance kit",
            "kit",
            oldest=OLDEST_VERSION,
        )
        changed: Hello = msgspec.structs.replace(mine, **changes)
        return changed

    def _greet(self, **changes: Any) -> None:
        self._draft = self._hello(**changes)
        self._send(self._draft)

    def _send(self, *messages: AnyMessage) -> bool:
        fields = msgspec.msgpack.decode(encode(messages))
        return self._send_frame(
            msgspec.msgpack.encode([{"added": [1], **each, "more": {}} for each in fields])
        )

    def _send_frame(self, frame: bytes) -> bool:
        """Returns whether the target was there. One that has hung up may come back."""
        try:
            self._link.send(self._peer or b"", frame)
        except SocketError:
            return False
        return True

    def _take(self, heard: Heard) -> None:
        note = self.report.note
        try:
            messages = decode(heard.frame, vocab_size=MAX_ID)
        except FrameError as error:
            note(broken_rule(heard.frame, error), str(error))
            return
        note(1)
        note(2)
        if isinstance(messages[0], Hello):
            note(3, "" if len(messages) == 1 else "more comes with the first HELLO")
            self._peer, self._target, self._draft = heard.peer, messages[0], None
            self._num_connections += 1
            self._texts, self._epochs = {}, {}
            return
        if heard.peer != self._peer:
            if self._peer is None:
                note(3, f"before HELLO it sends {type(messages[0]).__name__}")
            return  # From a connection that is over.
        if self._draft is None:
            note(3, f"before the draft's HELLO it sends {type(messages[0]).__name__}")
            return
        if self._was_refused:
            note(6, "it goes on after a refusal")
        answers = [answer for message in messages for answer in self._answers(message)]
        self._send(*answers, Stats(1, 1, 0.0, len(self._texts), 0.0))

    def _answers(self, message: AnyMessage) -> list[AnyMessage]:
        match message:
            case AskOpen():
                return [OfferOpen(message.seq, message.epoch)]
            case Open():
                return self._open(message)
            case Outcome():
                return self._outcomes(message)
            case Resync():
                text = self._texts.get(message.seq)
                if text is None or text.epoch != message.epoch:
                    return []
                self._num_whole += 1
                text.most_counted, text.children = None, {}
                return [Nodes.of([text.row(message.seq, full=True)])]
            case Close():
                self._texts.pop(message.seq, None)
        return []

    def _open(self, message: Open) -> list[AnyMessage]:
        assert self._target is not None
        assert self._draft is not None
        note, tokens = self.report.note, unpack_ints(message.tokens).tolist()
        before = self._texts.get(message.seq)
        is_higher = message.epoch > self._epochs.get(message.seq, -1)
        note(9, "" if is_higher else f"epoch {message.epoch} of {message.seq} comes again")
        self._epochs[message.seq] = message.epoch
        note(10, fault_of_opening(message, MAX_ID))
        longest = self._draft.max_model_len
        note(
            11,
            f"{len(tokens)} tokens for a draft of {longest}" if longest and len(tokens) + 2 > longest else "",
        )
        self._check_tokens(tokens)
        if before is not None and before.awaits_text:
            note(20, "" if tokens == before.text else "the text that is opened again is another")
        text = self._texts[message.seq] = FollowedText(message.epoch, tokens)
        return [Nodes.of([text.row(message.seq)])]

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        assert self._target is not None
        assert self._draft is not None
        fewest = min(self._target.vocab_size, self._draft.vocab_size)
        is_known = max(tokens, default=0) < fewest
        self.report.note(8, "" if is_known else f"token {max(tokens)} for a vocabulary of {fewest}")

    def _outcomes(self, message: Outcome) -> list[AnyMessage]:
        note, rows, start = self.report.note, list[TreePart](), 0
        faults, tokens = faults_of_outcome(message, MAX_ID), unpack_ints(message.tokens).tolist()
        answers = list[AnyMessage]()
        for place, head in enumerate(zip(*message.columns(), strict=True)):
            seq, epoch, n, num_frames, size = map(int, head)
            text, new, start = self._texts.get(seq), tokens[start : start + size], start + size
            if text is None or text.epoch != epoch:
                note(17, f"an outcome of {seq}, which is not open" if seq not in self._epochs else "")
                continue
            if text.closed_at is not None:
                is_late = time.monotonic() - text.closed_at > _QUIET_SECONDS
                note(14, "outcomes come after CLOSE" if is_late else "")
                continue
            is_next = n == text.n + 1
            note(17, faults.get(place, "" if is_next else f"outcome {n} follows {text.n}"))
            most = text.num_sent if text.most_counted is None else text.most_counted
            is_count = text.num_counted <= num_frames <= most
            rule = 18 if text.most_counted is None else 29
            note(rule, "" if is_count else f"{num_frames} frames are counted: at most {most} may be")
            self._check_tokens(new)
            text.num_counted = num_frames
            text.advance(new)
            if text.awaits_text:
                answers.append(Resync(seq, epoch))
            elif self._skips:
                self._skips, text.most_counted = False, text.num_sent
                text.num_sent += 1
            rows.append(text.row(seq))
        return [*([Nodes.of(rows)] if rows else []), *answers]
