"""The draft server: receives messages from engines and sends them nodes. One loop, no threads.

Each turn applies received messages for some milliseconds (frames.py), then takes one draft step. An invalid
message about a sequence closes that sequence; the rest of the frame is applied. A peer whose frame cannot be
decoded gets a HELLO and must connect again. When a peer disconnects, its sessions are closed.

Peers with the same key are one tenant; a peer without a key is a tenant of its own. Scarce resources are
shared between tenants (tenants.py). Knows peers, their sequences and the protocol; does not know the target,
HTTP or the engine's scheduler.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ssd.draft.protocol.codec import (
    FrameError,
    decode,
    encode,
    fault_of_opening,
    faults_of_outcome,
    without_foreign_ends,
)
from ssd.draft.protocol.messages import (
    MAX_MESSAGES,
    AnyMessage,
    AskOpen,
    Close,
    Hello,
    OfferOpen,
    Open,
    Outcome,
    Resync,
    Stats,
    unpack_ints,
    version_fault,
)
from ssd.draft.protocol.sockets import DraftSocket, Heard, SocketError
from ssd.draft.server.frames import FrameBatch, Intake, Peer, Peers
from ssd.draft.server.scheduler import DraftScheduler, OutOfTrees
from ssd.draft.server.session import DraftSession
from ssd.kvcache.block_manager import OutOfBlocks

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_REFUSALS = 10.0
"""Between two lines of the log about refused frames: a peer that sends nonsense must not fill the disk."""
_MOST_UNKNOWN = 256
"""Unknown sequences of a peer that one turn answers. A peer that makes them up must not fill its queue of
answers; an honest one sends another outcome of the remaining ones with its next step."""
_NO_BLOCKS = "the draft's KV cache is full: give it more with --kv-cache-bytes"
_NO_TREE = "the draft serves its maximum of sequences: raise its --max-num-seqs, or --kv-cache-bytes"
_NO_SHARE = "other tenants have less than their share of the draft: raise this tenant's in its --weights"
_DRAINS = "the draft takes no new sequences, because it will end"
_NO_ROWS = "its tenant has more sequences than its share of the draft can serve: raise its --weights"


@dataclass(slots=True)
class _Work:
    """Totals since the start."""

    num_steps: int = 0
    num_rows: int = 0
    seconds: float = 0.0


class DraftServer:
    def __init__(
        self,
        scheduler: DraftScheduler,
        link: DraftSocket,
        hello: Hello,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._link = link
        self._hello = hello
        self._clock = clock
        self._peers = Peers()
        self._spoke: dict[bytes, None] = {}
        """Peers that have sent a message in this turn. Most of thousands have not."""
        self._intake = Intake(link, clock, tenant_of=self._tenant_of, weight_of=scheduler.tenants.weight_of)
        self._work = _Work()
        self._last_spans: list[tuple[float, float, int]] = []
        self._step_seconds = 0.0
        """Duration of the last step."""
        self._num_refused, self._log_refused_at = 0, float("-inf")
        """Frames that were refused since the log was told, and when it is told next."""
        self.drains = False
        """It takes no new sequences."""

    def run(self, is_over: Callable[[], bool], drains: Callable[[], bool] = lambda: False) -> None:
        """Serves until `is_over`, or until an error; then sends every peer a HELLO.

        Takes no new sequences once `drains` is true.
        """
        is_busy = False
        try:
            while not is_over():
                self.drains = self.drains or drains()
                is_busy = self.turn(0.0 if is_busy else 0.25)
        finally:
            for peer, _known in self._peers:
                # A HELLO tells the engine to reconnect.
                self._send(peer, [self._hello])

    def turn(self, timeout: float) -> bool:
        """Applies received messages, waiting for the first one up to `timeout`, and takes one draft step.

        Returns False if there was nothing to do.
        """
        self._take_in(timeout)
        self._take_in_while_computing()
        self._answer_resyncs()
        self._send_heartbeats()
        frames, num_rows = self._scheduler.grow()
        if num_rows:
            self._note_step(*self._scheduler.last_span, num_rows)
        if num_rows or frames is not None:
            self._send_nodes(frames)
        self._acknowledge()
        admission = self._scheduler.admission
        if self._scheduler.is_starved:
            return self._evict(admission.for_others(), _NO_BLOCKS)
        self._evict(admission.for_rows(), _NO_ROWS)
        return bool(num_rows) or self._scheduler.is_growing or self._intake.is_waiting

    def _take_in(self, timeout: float) -> None:
        for peer in self._intake.receive(timeout):
            logger.warning("an engine sent more than the draft can queue; it must reconnect")
            self._forget(peer)
            self._send(peer, [self._hello])
        self._intake.apply(self._apply_frame, self._step_seconds)

    def _take_in_while_computing(self) -> None:
        """On a GPU the next step is launched shortly before the current one ends: until then outcomes that
        arrive still reach it."""
        latest = self._clock() + self._scheduler.spare_seconds
        while (left := latest - self._clock()) > 0:
            self._take_in(left)
            if not self._intake.has_received:
                break

    def _evict(self, gone: int | None, reason: str) -> bool:
        """Closes the session that has the row `gone`, if any. The engine may open it again later.

        A negative row is an offer, which is withdrawn.
        """
        if gone is not None and gone < 0:
            self._scheduler.offers.release_number(-gone)
            return True
        for peer, known in self._peers:
            for session in list(known.sessions.values()):
                if session.row == gone:
                    self._close(known, session.seq, session.epoch)
                    self._send(peer, [Close(session.seq, session.epoch, reason, may_return=True)])
                    return True
        return False

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()
        held = sum(len(peer.sessions) for _, peer in self._peers)
        if held != self._scheduler.num_sessions:
            raise RuntimeError("the scheduler holds sessions that belong to no peer")
        for _, peer in self._peers:
            rows = sorted(session.row for session in peer.sessions.values())
            if np.flatnonzero(peer.rows).tolist() != rows:
                raise RuntimeError("a peer's rows are not those of its sessions")

    def _tenant_of(self, heard: Heard) -> str:
        """The tenant that a frame's time is charged to."""
        known = self._peers.get(heard.peer)
        return known.tenant if known is not None else heard.key or heard.peer.hex()

    def _apply_frame(self, heard: Heard) -> Iterator[None]:
        """Applies the messages of a frame, one for each step of the iterator."""
        peer = heard.peer
        known = self._peers.get(peer)
        try:
            messages = decode(heard.frame, vocab_size=known.vocab_size if known else self._hello.vocab_size)
        except FrameError as error:
            self._note_refused(error)
            self._forget(peer)
            self._intake.discard(peer)
            self._send(peer, [self._hello])
            return
        for message in messages:
            self._send(peer, self._apply(heard, message))
            yield

    def _note_refused(self, error: FrameError) -> None:
        self._num_refused += 1
        if self._clock() >= self._log_refused_at:
            logger.warning("refused %d frames that cannot be decoded, lastly: %s", self._num_refused, error)
            self._num_refused, self._log_refused_at = 0, self._clock() + _SECONDS_BETWEEN_REFUSALS

    def _apply(self, heard: Heard, message: AnyMessage) -> list[AnyMessage]:
        if isinstance(message, Hello):
            return [self._greet(heard, message)]
        known = self._peers.get(heard.peer)
        if known is None:
            return [self._hello]
        known.awaits_reply = True
        self._spoke[heard.peer] = None
        match message:
            case AskOpen():
                return self._ask(known, message)
            case Open():
                return self._open(known, message)
            case Outcome():
                return self._outcomes(known, message)
            case Resync():
                session = known.sessions.get(message.seq)
                if session is not None and session.epoch == message.epoch:
                    known.resyncs.add(message.seq)
            case Close():
                self._scheduler.offers.release((known.name, message.seq))
                session = known.sessions.get(message.seq)
                # Of an older epoch too: the OPEN of this one may have been lost.
                if session is not None and session.epoch <= message.epoch:
                    self._close(known, message.seq, session.epoch)
        return []

    def _greet(self, heard: Heard, hello: Hello) -> Hello:
        self._forget(heard.peer)
        refusal = self._refusal_of(hello) or self._peers.refusal_of(heard.key)
        if refusal:
            return self._refusal(refusal)
        rows = np.zeros(self._scheduler.most_sessions + 1, np.bool_)
        vocab_size = min(hello.vocab_size, self._hello.vocab_size)
        # A peer without a key is the same tenant when it reconnects.
        tenant = heard.key or f"{hello.name} {hello.instance}"
        self._peers.add(heard.peer, Peer(heard.peer, heard.key, tenant, vocab_size, rows))
        return self._hello

    def _refusal_of(self, hello: Hello) -> str:
        ours = self._hello
        if fault := version_fault(draft=ours, engine=hello):
            return fault
        if hello.tokenizer != ours.tokenizer:
            return (
                f"{ours.name} cannot draft for {hello.name}: their tokenizers differ; "
                "use a draft of the same family"
            )
        return ""

    def _ask(self, peer: Peer, message: AskOpen) -> list[AnyMessage]:
        known = peer.sessions.get(message.seq)
        if known is not None and not self._replaces(peer, known, message):
            return []
        owner = peer.name, message.seq
        self._scheduler.offers.release(owner)
        fault = self._fault_of_length(message.num_tokens) or (_DRAINS if self.drains and not known else "")
        if fault:
            return [Close(message.seq, message.epoch, fault)]
        try:
            num_cached = self._scheduler.offer(owner, peer.tenant, message)
        except OutOfTrees:
            return self._declined(peer, message, _NO_TREE)
        except OutOfBlocks:
            return self._declined(peer, message, _NO_BLOCKS)
        return [OfferOpen(message.seq, message.epoch, num_cached)]

    def _replaces(self, peer: Peer, known: DraftSession, message: Open | AskOpen) -> bool:
        """Closes the older epoch of a sequence. False if the message is the older one."""
        if message.epoch <= known.epoch:
            return False
        self._close(peer, known.seq, known.epoch)
        return True

    def _fault_of_length(self, num_tokens: int) -> str:
        longest = self._scheduler.max_model_len
        if num_tokens < 1:
            return "a text has at least 1 token"
        return f"the draft's context ends at {longest} tokens" if num_tokens + 2 > longest else ""

    def _open(self, peer: Peer, message: Open) -> list[AnyMessage]:
        known = peer.sessions.get(message.seq)
        if known is not None and not self._replaces(peer, known, message):
            return []
        # The room that was kept for it is now free for it.
        self._scheduler.offers.release((peer.name, message.seq))
        # The length first: a refused sequence should cost nothing.
        fault = self._fault_of_length(len(message.tokens) // 4) or fault_of_opening(message, peer.vocab_size)
        if fault or (self.drains and known is None):
            return [Close(message.seq, message.epoch, fault or _DRAINS)]
        admission = self._scheduler.admission
        # More than once: an offer may count on the room of sessions that are not evicted yet.
        while not self._scheduler.has_free_tree:
            if not self._evict(admission.for_tree(peer.tenant), _NO_SHARE):
                return self._declined(peer, message, _NO_TREE)
        try:
            message = without_foreign_ends(message, peer.vocab_size)
            session = DraftSession(message, self._scheduler.max_model_len, peer.vocab_size, peer.tenant)
            self._open_session(session)
        except OutOfBlocks:
            return self._declined(peer, message, _NO_BLOCKS)
        except ValueError as error:
            return [Close(message.seq, message.epoch, str(error)[:500])]
        peer.sessions[message.seq], peer.rows[session.row] = session, True
        return []

    def _declined(self, peer: Peer, message: Open | AskOpen, reason: str) -> list[AnyMessage]:
        """Adds statistics, so that the engine can see when to try again."""
        return [Close(message.seq, message.epoch, reason, may_return=True), self._stats(peer)]

    def _open_session(self, session: DraftSession) -> None:
        """Opens a session, evicting sessions of tenants that hold more than their share.

        Raises OutOfBlocks if that does not free enough blocks.
        """
        while True:
            try:
                self._scheduler.open(session)
                return
            except OutOfBlocks:
                gone = self._scheduler.admission.for_blocks(session.tenant, session.tokens)
                if not self._evict(gone, _NO_SHARE):
                    raise

    def _outcomes(self, peer: Peer, message: Outcome) -> list[AnyMessage]:
        answers, tokens, start = list[AnyMessage](), unpack_ints(message.tokens).tolist(), 0
        faults = faults_of_outcome(message, peer.vocab_size)
        columns = (each.tolist() for each in message.columns())
        for place, (seq, epoch, n, num_frames, count) in enumerate(zip(*columns, strict=True)):
            session = peer.sessions.get(seq)
            if session is None or session.epoch < epoch:
                # Its OPEN was lost, or the CLOSE that ended it, or this outcome crossed that CLOSE.
                if len(peer.unknown) < _MOST_UNKNOWN:
                    peer.unknown[seq] = epoch
            elif session.epoch > epoch:
                pass
            elif place in faults:
                self._close(peer, seq, epoch)
                answers.append(Close(seq, epoch, faults[place]))
            else:
                session.note_arrival(num_frames)
                answers += self._outcome(peer, session, n, tokens[start : start + count])
            start += count
        return answers

    def _outcome(self, peer: Peer, session: DraftSession, n: int, tokens: Sequence[int]) -> list[AnyMessage]:
        try:
            self._scheduler.advance(session, n, tokens)
        except ValueError as error:
            self._close(peer, session.seq, session.epoch)
            return [Close(session.seq, session.epoch, str(error)[:500])]
        if session.is_out_of_sync:
            # Sent with every outcome until the sequence is opened again: a RESYNC may get lost too.
            return [Resync(session.seq, session.epoch)]
        return []

    def _close(self, peer: Peer, seq: int, epoch: int) -> None:
        session = peer.sessions.get(seq)
        if session is not None and session.epoch == epoch:
            del peer.sessions[seq]
            peer.rows[session.row] = False
            self._scheduler.close(session)

    def _forget(self, peer: bytes) -> None:
        known = self._peers.pop(peer)
        if known is None:
            return
        self._scheduler.offers.release_peer(peer)
        for session in known.sessions.values():
            self._scheduler.close(session)
        if not self._peers.has_tenant(known.tenant):
            self._scheduler.tenants.forget(known.tenant)

    def _answer_resyncs(self) -> None:
        """Sends each requested tree once, however often it was requested, and asks for missing sequences."""
        for peer, known in self._that_spoke():
            unknown, known.unknown = known.unknown, {}
            self._send(peer, [Resync(*each) for each in unknown.items()])
            resyncs, known.resyncs = known.resyncs, set()
            for seq in resyncs:
                if (session := known.sessions.get(seq)) is not None:
                    self._send(peer, [self._scheduler.full_frame(session).message()])

    def _send_nodes(self, frames: FrameBatch | None) -> None:
        for peer, known in self._peers:
            if not known.sessions:
                continue
            mine = None if frames is None else frames.of(known.rows)
            nodes: list[AnyMessage] = [] if mine is None or mine.is_empty else [mine.message()]
            self._send(peer, [*nodes, self._stats(known)])
        self._last_spans = []

    def _send(self, peer: bytes, messages: Sequence[AnyMessage]) -> None:
        for start in range(0, len(messages), MAX_MESSAGES):
            self._send_frame(peer, encode(messages[start : start + MAX_MESSAGES]))

    def _send_frame(self, peer: bytes, frame: bytes) -> None:
        try:
            self._link.send(peer, frame)
            self._peers.note_sent(peer, self._clock())
        except SocketError:
            logger.info("an engine has disconnected; its sequences are closed")
            self._forget(peer)

    def _acknowledge(self) -> None:
        """Answers every peer that sent a message: an engine takes silence for a failure."""
        for peer, known in self._that_spoke():
            if known.awaits_reply:
                self._send(peer, [self._stats(known)])
        self._spoke.clear()

    def _that_spoke(self) -> list[tuple[bytes, Peer]]:
        return [(peer, known) for peer in self._spoke if (known := self._peers.get(peer)) is not None]

    def _send_heartbeats(self) -> None:
        """Sends statistics to peers that were sent nothing for a while, however busy the draft is."""
        for peer in self._peers.due_for_heartbeat(self._clock()):
            self._send(peer, [self._stats(self._peers[peer])])

    def _note_step(self, started: float, ended: float, num_rows: int) -> None:
        self._work.num_steps += 1
        self._work.num_rows += num_rows
        self._work.seconds += ended - started
        self._step_seconds = ended - started
        self._last_spans.append((started, ended, num_rows))

    def _stats(self, peer: Peer) -> Stats:
        return Stats(
            num_steps=self._work.num_steps,
            num_rows=self._work.num_rows,
            seconds=self._work.seconds,
            num_sequences=self._scheduler.num_sessions,
            kv_usage=self._scheduler.kv_usage,
            tenant=peer.key,
            num_own_rows=self._scheduler.tenants.num_had(peer.tenant),
            step_spans=list(self._last_spans),
            free_sequences=self._scheduler.num_seats_for(peer.tenant),
            free_tokens=self._scheduler.num_free_tokens,
            drains=self.drains,
        )

    def _refusal(self, reason: str) -> Hello:
        return msgspec.structs.replace(self._hello, max_model_len=0, refusal=reason[:500])
