"""Checks a draft: plays targets that do what they may, and what they may not.

Each check connects anew. What a draft sends is checked by all rules of trees and totals, whatever is being
exercised. Knows the protocol and how long it may take; no models.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import msgspec

from ssd.draft.conformance.report import Report
from ssd.draft.conformance.sequences import TreeCopy, broken_rule, outcome_of, rows_of
from ssd.draft.protocol.codec import MAX_LOOKAHEAD, FrameError, decode, encode
from ssd.draft.protocol.messages import (
    CREDIT,
    HEARTBEAT_SECONDS,
    MAX_ID,
    MAX_MESSAGES,
    MAX_TOKENS,
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    AnyMessage,
    AskOpen,
    Close,
    Hello,
    Nodes,
    OfferOpen,
    Open,
    Resync,
    Sampling,
    Stats,
    pack_ints,
    prefix_hashes,
)
from ssd.draft.protocol.sockets import EngineSocket

_QUIET_SECONDS = 0.3
"""Within this time frames that are on their way arrive."""
_MOST_OUTCOMES = 4 * CREDIT
_LOOKAHEAD = 4
_TOTALS = ("num_steps", "num_rows", "seconds", "num_own_rows")

Accepts = Callable[[AnyMessage], bool]


class PlayedTarget:
    """One connection to the draft."""

    def __init__(self, socket: EngineSocket, report: Report, hello: Hello, patience: float) -> None:
        self.socket, self.report, self.hello, self._patience = socket, report, hello, patience
        self.trees: dict[int, TreeCopy] = {}
        """By seq."""
        self._totals: Stats | None = None

    def send(self, *messages: AnyMessage) -> None:
        self.socket.send(encode(messages))

    def greet(self, **changes: Any) -> Hello | None:
        """Sends HELLO and returns the answer."""
        self.send(msgspec.structs.replace(self.hello, **changes))
        found = self.wait(lambda message: isinstance(message, Hello))
        return found if isinstance(found, Hello) else None

    def wait(self, accepts: Accepts) -> AnyMessage | None:
        """The next message of this kind; those before it are checked and dropped."""
        ends = time.monotonic() + self._patience
        while (left := ends - time.monotonic()) > 0:
            # All of the frame is checked.
            found = [message for message in self.heard(left) if accepts(message)]
            if found:
                return found[0]
        return None

    def heard(self, seconds: float) -> list[AnyMessage]:
        """The messages of the next frame."""
        frame = self.socket.receive(seconds)
        if frame is None:
            return []
        try:
            messages = decode(frame, vocab_size=MAX_ID)
        except FrameError as error:
            self.report.note(broken_rule(frame, error), str(error))
            return []
        self.report.note(1)
        self.report.note(2)
        for message in messages:
            self._check(message)
        return messages

    def quiet(self, seconds: float = _QUIET_SECONDS) -> list[AnyMessage]:
        """All that comes in this time."""
        ends, found = time.monotonic() + seconds, list[AnyMessage]()
        while (left := ends - time.monotonic()) > 0:
            found += self.heard(left)
        return found

    def open(self, seq: int = 1, epoch: int = 1, tokens: list[int] | None = None, **changes: Any) -> TreeCopy:
        """Opens a sequence, and checks from now on what is sent about it."""
        opening = opening_of(seq, epoch, tokens, **changes)
        self.trees[seq] = TreeCopy(opening, self.hello.vocab_size)
        self.send(opening)
        return self.trees[seq]

    def nodes_of(self, tree: TreeCopy, n: int, seconds: float | None = None) -> bool:
        """Waits for nodes that follow the n-th outcome. False: they do not come, or it is declined."""
        ends = time.monotonic() + (self._patience if seconds is None else seconds)
        while (tree.n < n or tree.root is None) and not tree.is_closed:
            if (left := ends - time.monotonic()) <= 0:
                break
            self.heard(left)
        return tree.n >= n and tree.root is not None

    def closed(self, seq: int) -> Close | None:
        found = self.wait(lambda each: isinstance(each, Close) and each.seq == seq)
        return found if isinstance(found, Close) else None

    def _check(self, message: AnyMessage) -> None:
        match message:
            case Stats():
                last, self._totals = self._totals, message
                fell = [each for each in _TOTALS if last and getattr(message, each) < getattr(last, each)]
                self.report.note(33, f"{fell[0]} has fallen" if fell else "")
            case Close():
                tree = self.trees.get(message.seq)
                if tree is not None and tree.opening.epoch == message.epoch:
                    tree.is_closed = True
            case Nodes():
                for row in rows_of(message):
                    tree = self.trees.get(row.seq)
                    if tree is not None and tree.opening.epoch == row.epoch:
                        for rule, fault in tree.take(row):
                            self.report.note(rule, fault)


def opening_of(seq: int, epoch: int, tokens: list[int] | None = None, **changes: Any) -> Open:
    text = [*range(5, 37)] if tokens is None else tokens
    usual = Open(seq, epoch, pack_ints(text), len(text), 1 << 14, _LOOKAHEAD, Sampling(seed=7))
    changed: Open = msgspec.structs.replace(usual, **changes)
    return changed


class DraftChecks:
    def __init__(
        self,
        connect: Callable[[], EngineSocket],
        report: Report,
        connect_unknown: Callable[[], EngineSocket] | None = None,
        *,
        patience: float = 30.0,
    ) -> None:
        """`connect_unknown`: with a key that the draft does not know; None: it needs no keys.

        `patience`: seconds within which the draft answers.
        """
        self._patience = patience
        self._connect, self._report, self._connect_unknown = connect, report, connect_unknown
        self._draft = Hello(PROTOCOL_VERSION, "", 0, "", "")
        """What it says of itself."""
        self._names = count()

    def run(self) -> bool:
        """False: no draft answers, so nothing was checked."""
        with self._target():
            if not self._draft.tokenizer:
                return False
        for check in (
            self.greets,
            self.numbers_and_trees,
            self.outcomes_out_of_turn,
            self.missed_frames,
            self.credit,
            self.sequences_apart,
            self.invalid_frames,
            self.answers,
            self.asks,
            self.keys,
        ):
            check()
        return True

    @contextmanager
    def _target(self, *, greets: bool = True) -> Iterator[PlayedTarget]:
        hello = Hello(
            PROTOCOL_VERSION,
            self._draft.tokenizer,
            self._draft.vocab_size,
            "the conformance kit",
            f"kit {next(self._names)}",
            oldest=OLDEST_VERSION,
        )
        socket = self._connect()
        try:
            target = PlayedTarget(socket, self._report, hello, self._patience)
            if greets:
                answer = target.greet(tokenizer=self._draft.tokenizer or "unknown")
                if answer is not None and answer.refusal and not self._draft.tokenizer:
                    self._draft = answer
                    target.hello = msgspec.structs.replace(
                        hello, tokenizer=answer.tokenizer, vocab_size=answer.vocab_size
                    )
                    answer = target.greet()
                if answer is None or answer.refusal:
                    self._report.note(3, f"no greeting: {answer.refusal if answer else 'silence'}")
                else:
                    self._draft = answer
            yield target
        finally:
            socket.close()

    def greets(self) -> None:
        note = self._report.note
        with self._target(greets=False) as target:
            target.send(Close(1, 1))
            first = target.wait(lambda _: True)
            note(3, "" if isinstance(first, Hello) else f"before HELLO it answers {first}")
        with self._target() as target:
            note(3, "" if self._draft.vocab_size else "it says nothing of its vocabulary")
            foreign = target.greet(tokenizer="another")
            note(5, "" if foreign and foreign.refusal else "a foreign tokenizer is not refused")
            for version, oldest, fits in ((PROTOCOL_VERSION + 1, OLDEST_VERSION, True), (2, 1, False)):
                answer = target.greet(version=version, oldest=oldest)
                is_right = answer is not None and bool(answer.refusal) != fits
                note(4, "" if is_right else f"versions {oldest} to {version}: {answer}")
            fields = msgspec.msgpack.decode(encode([target.hello]))[0]
            target.socket.send(msgspec.msgpack.encode([{"added": [1], **fields, "more": {}}]))
            later = target.wait(lambda message: isinstance(message, Hello))
            is_read = isinstance(later, Hello) and not later.refusal
            note(2, "" if is_read else "a HELLO with further fields is not read")

    def numbers_and_trees(self) -> None:
        """Follows the draft's guesses and leaves them, by turns."""
        with self._target() as target:
            tree = target.open()
            for n in range(24):
                if not target.nodes_of(tree, n):
                    self._report.note(23, f"no nodes follow outcome {n}")
                    return
                target.quiet(0.02)
                followed = tree.path(n % 4)
                target.send(
                    tree.outcome([*followed, tree.unlikely_token()] if n % 3 else [*tree.path(4)] or [5])
                )
            short = target.open(2, max_len=40, tokens=[*range(5, 38)])
            target.nodes_of(short, 0, seconds=1.0)
            target.quiet()

    def outcomes_out_of_turn(self) -> None:
        note = self._report.note
        with self._target() as target:
            tree = target.open(epoch=5)
            target.nodes_of(tree, 0)
            first = tree.outcome([5])
            target.send(first, Resync(1, 4), first)
            target.send(first)
            target.nodes_of(tree, 1)
            target.quiet()
            target.send(tree.outcome([6]))
            note(19, "" if target.nodes_of(tree, 2) else "an outcome that came twice stops the sequence")
            # Epochs that are over, or never were.
            target.send(
                opening_of(1, 4), outcome_of(1, 4, 1, 0, [5]), Close(1, 4), outcome_of(1, 6, 1, 0, [5])
            )
            note(31, "" if target.wait(_is(Resync, 1, 6)) else "an unknown epoch does not cause RESYNC")
            target.quiet()
            target.send(tree.outcome([7]))
            note(9, "" if target.nodes_of(tree, 3) else "messages of other epochs stop the sequence")
            is_resync = _is(Resync, 1, 5)
            for _ in range(2):
                target.send(tree.outcome([8], n=9))
                note(19, "" if target.wait(is_resync) else "a missing outcome does not cause RESYNC")
            again = target.open(epoch=6)
            target.nodes_of(again, 0)
            note(9, "" if again.num_frames else "a higher epoch does not open the sequence again")

    def missed_frames(self) -> None:
        with self._target() as target:
            tree = target.open()
            target.nodes_of(tree, 0)
            target.quiet()
            target.send(Resync(1, 1))
            full = target.wait(
                lambda each: (
                    isinstance(each, Nodes) and any(row.seq == 1 and row.full for row in rows_of(each))
                )
            )
            self._report.note(30, "" if full else "RESYNC is not answered with a full frame")

    def credit(self) -> None:
        """Goes on without counting a frame: the draft must stop, and go on once they are counted."""
        with self._target() as target:
            tree = target.open()
            target.nodes_of(tree, 0)
            for n in range(1, _MOST_OUTCOMES):
                target.send(tree.outcome([tree.unlikely_token()], num_frames=0))
                if not target.nodes_of(tree, n, seconds=1.0):
                    break
            target.quiet()
            if 28 in self._report.broken:
                return
            target.send(tree.outcome([5]))
            goes_on = target.nodes_of(tree, len(tree.lengths) - 1)
            self._report.note(28, "" if goes_on else "nothing comes after the frames were counted")

    def sequences_apart(self) -> None:
        note = self._report.note
        with self._target() as target:
            good = target.open()
            target.nodes_of(good, 0)
            for seq, (rule, changes) in enumerate(self._unfit(), 2):
                target.send(opening_of(seq, 1, **changes))
                closed = target.closed(seq)
                is_right = closed is not None and not closed.may_return
                note(
                    rule, "" if is_right else f"an opening with {next(iter(changes))} out of range: {closed}"
                )
            target.open(20)
            target.send(outcome_of(20, 1, 1, 0, [self._draft.vocab_size]))
            note(21, "" if target.closed(20) else "an outcome with an unknown token is taken")
            target.send(outcome_of(21, 1, 1, 0, [5]))
            note(31, "" if target.wait(_is(Resync, 21, 1)) else "an unknown sequence does not cause RESYNC")
            target.send(good.outcome([5]))
            note(10, "" if target.nodes_of(good, 1) else "another sequence's fault stops this one")
            target.send(Close(1, 1))
            target.quiet()
            target.send(Resync(1, 1))
            late = [each for each in target.quiet() if isinstance(each, Nodes) and 1 in each.columns().seq]
            note(14, "nodes come after CLOSE" if late else "")

    def _unfit(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Openings that a draft declines: the rule, and what is wrong."""
        yield 10, {"tokens": [5, self._draft.vocab_size]}
        yield 10, {"num_prompt": 33}
        yield 10, {"lookahead": MAX_LOOKAHEAD + 1}
        yield 10, {"sampling": Sampling(seed=1, top_p=0.0)}
        yield 12, {"sampling": Sampling(seed=1, temperature=1.0, noise="unknown")}
        if 2 < self._draft.max_model_len <= MAX_TOKENS:
            yield 11, {"tokens": [5] * (self._draft.max_model_len - 1)}

    def invalid_frames(self) -> None:
        for frame in (
            b"",
            b"\xc1",
            msgspec.msgpack.encode([["resync", 1, 1]]),
            msgspec.msgpack.encode([{"type": "resync", "seq": 1}]),
            msgspec.msgpack.encode([{"type": "unknown"}]),
            encode([Resync(1, 1)] * (MAX_MESSAGES + 1)),
            encode([Resync(-1, 1)]),
        ):
            with self._target() as target:
                target.nodes_of(target.open(), 0)
                target.quiet(0.05)
                target.socket.send(frame)
                is_over = target.wait(lambda message: isinstance(message, Hello))
                self._report.note(
                    broken_rule(frame), "" if is_over else f"{frame[:40]!r} does not end the connection"
                )
                target.send(Resync(1, 1))
                after = target.quiet(0.1)
                forgot = any(isinstance(each, Hello) for each in after)
                forgot &= not any(isinstance(each, Nodes) for each in after)
                self._report.note(7, "" if forgot else "sequences go on after an invalid frame")

    def answers(self) -> None:
        with self._target() as target:
            target.quiet(0.1)
            target.send(Resync(9, 9))
            self._report.note(32, "" if target.heard(2.0) else "a message is not answered within 2 s")
            target.quiet(0.1)
            found = target.heard(HEARTBEAT_SECONDS + 2.0)
            self._report.note(32, "" if found else "an idle draft gives no sign of life")

    def asks(self) -> None:
        note = self._report.note
        with self._target() as target:
            longest = self._draft.max_model_len or 1 << 10
            text = [5 + place % 20 for place in range(min(200, longest - 2))]
            asked = AskOpen(1, 3, len(text), prefix_hashes(text))
            target.send(asked)
            answer = target.wait(lambda each: isinstance(each, OfferOpen | Close) and each.seq == 1)
            note(15, "" if answer else "ASK is not answered")
            target.send(Resync(9, 9))
            stats = target.wait(lambda each: isinstance(each, Stats))
            drains = isinstance(stats, Stats) and stats.drains
            if isinstance(answer, OfferOpen):
                tree = target.open(1, 3, text)
                taken = target.nodes_of(tree, 0)
                note(15, "" if taken and answer.num_cached < len(text) else "what was offered is not taken")
            if drains:
                note(16, "an offer of a draft that drains" if isinstance(answer, OfferOpen) else "")
            target.send(AskOpen(2, 1, 1 << 30))
            long = target.closed(2)
            note(11, "" if long and not long.may_return else f"a text of 2³⁰ tokens: {long}")
            # More than any draft has room for, within the second of the first offer.
            target.send(*(AskOpen(seq, 1, longest - 2) for seq in range(10, 10 + MAX_MESSAGES // 2)))
            full = target.wait(lambda each: isinstance(each, Close) and each.seq >= 10)
            if isinstance(full, Close) and not drains:
                note(13, "" if full.may_return else "a lack of room is declined without may_return")
            target.send(*(Close(seq, 1) for seq in range(10, 10 + MAX_MESSAGES // 2)))

    def keys(self) -> None:
        if self._connect_unknown is None:
            return
        socket = self._connect_unknown()
        try:
            target = PlayedTarget(socket, self._report, self._draft, self._patience)
            target.send(self._draft)
            self._report.note(34, "an unknown key is let in" if target.quiet(2.0) else "")
        finally:
            socket.close()


def _is(kind: type[Resync], seq: int, epoch: int) -> Accepts:
    return lambda message: isinstance(message, kind) and (message.seq, message.epoch) == (seq, epoch)
