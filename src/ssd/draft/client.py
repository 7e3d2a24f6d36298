"""The host's end of the draft: mirrors of all its sequences, whatever happens to the other side.

Nothing here waits unless told how long. A draft that is lost takes the mirrors with it; when the next one is
ready every sequence is opened again from its tokens. Knows the protocol, the mirrors and tokens. Does not
know the target or an engine: sequences go by any key, sampling parameters come as they travel.
"""

import itertools
import logging
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import msgspec
import numpy as np

from ssd.draft.choice import choose
from ssd.draft.distance import Distance
from ssd.draft.line import Line, LineStats
from ssd.draft.messages import (
    MAX_ID,
    MAX_TOKENS,
    AnyMessage,
    Close,
    Nodes,
    Open,
    Outcome,
    OutcomeHeads,
    Resync,
    Sampling,
    Stats,
    pack_ints,
)
from ssd.draft.mirrors import Distribution, Knowledge, Mirrors
from ssd.draft.strand import Sources, Strand

Key = TypeVar("Key", bound=Hashable)

logger = logging.getLogger(__name__)

_ROUNDS_BETWEEN_RESYNCS = 4
_KEPT_SPANS = 256
_UNKNOWN_TOKENS = "it holds tokens the draft does not know"


class Path(msgspec.Struct, frozen=True):
    """A speculation: tokens, and the chance that the text runs through each of them."""

    tokens: Sequence[int] = ()
    chances: Sequence[float] = ()
    drawn: Sequence[Distribution] | None = None
    """Under ratio acceptance, what each token was drawn from."""

    def cut(self, length: int) -> "Path":
        if length == len(self.tokens):
            return self
        drawn = None if self.drawn is None else self.drawn[:length]
        return Path(self.tokens[:length], self.chances[:length], drawn)


_NO_PATH = Path()


@dataclass(slots=True)
class _Followed:
    """A sequence that is to be speculated for."""

    row: int
    """Of the mirrors, and its name on the wire."""
    tokens: "array[int]"
    num_prompt: int
    sampling: Sampling
    max_len: int
    strand: Strand | None = None
    """The draft that it is open with."""
    declined: "dict[Strand, bool]" = field(default_factory=dict)
    """The drafts that declined it, and whether that was for lack of room."""
    asked_at: int = -_ROUNDS_BETWEEN_RESYNCS
    """The round of the last request for the whole tree."""

    @property
    def is_open(self) -> bool:
        return self.strand is not None

    @property
    def room(self) -> int:
        """Drafted tokens that may follow: the target adds the last one itself."""
        return max(0, self.max_len - len(self.tokens) - 1)


class DraftClient:
    def __init__(
        self,
        sources: Sources,
        *,
        lookahead: int,
        num_sequences: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`num_sequences`: there is room for so many from the start; with more it grows, which takes time."""
        self._distance = Distance(lookahead, clock)
        self.line = Line(sources, self, clock)
        self._followed: dict[Hashable, _Followed] = {}
        self._by_row: dict[int, _Followed] = {}
        self._free_rows: list[int] = []
        self._mirrors = Mirrors(num_sequences)
        self.is_paused = False
        """The draft rests: nothing is told to it."""
        self._next_epoch = itertools.count(1).__next__
        self._step_spans: deque[tuple[float, float, int]] = deque(maxlen=_KEPT_SPANS)

    @property
    def stats(self) -> LineStats:
        return self.line.stats

    @property
    def is_ready(self) -> bool:
        return self.line.is_ready

    def __contains__(self, key: Hashable) -> bool:
        return key in self._followed

    def strangers_among(self, keys: Sequence[Key]) -> list[Key]:
        """Those that nobody follows."""
        followed = self._followed
        return [key for key in keys if key not in followed]

    def follow(
        self, key: Hashable, tokens: Iterable[int], num_prompt: int, sampling: Sampling, max_len: int
    ) -> None:
        """Speculates for a sequence from here on; one that goes by this key already begins again."""
        with self.line.lock:
            self.forget(key)
            row = self._free_rows.pop() if self._free_rows else len(self._by_row)
            followed = _Followed(row, array("i", tokens), num_prompt, sampling, max_len)
            self._followed[key] = self._by_row[row] = followed
            self._open(followed)
            self.line.flush()

    def forget(self, key: Hashable) -> None:
        with self.line.lock:
            followed = self._followed.pop(key, None)
            if followed is not None:
                self._close(followed)
                self.line.flush()
                del self._by_row[followed.row]
                self._free_rows.append(followed.row)

    def pause(self) -> None:
        """Tells the draft nothing more, so that it rests."""
        with self.line.lock:
            self.is_paused = True
            for followed in self._followed.values():
                self._close(followed)
            self.line.flush()

    def resume(self) -> None:
        with self.line.lock:
            self.is_paused = False
            self._open_all()
            self.line.flush()

    def text_of(self, key: Hashable) -> "tuple[array[int], int]":
        """The text so far, and how many drafted tokens may follow; empty where nobody follows it."""
        followed = self._followed.get(key)
        return (followed.tokens, followed.room) if followed is not None else (array("i"), 0)

    def outcomes(self, outcomes: Sequence[tuple[Hashable, Sequence[int]]]) -> list[Knowledge]:
        """Verifications have ended with these tokens: what is known about what follows each?"""
        found = [Knowledge.UNHEARD] * len(outcomes)
        with self.line.lock:
            told = list[tuple[int, _Followed, Sequence[int]]]()
            for place, (key, tokens) in enumerate(outcomes):
                followed = self._followed.get(key)
                if followed is not None:
                    followed.tokens.extend(tokens)
                    if followed.is_open and self._is_sayable(followed, tokens):
                        told.append((place, followed, tokens))
            if told:
                self._distance.note_round()
                places, sequences, texts = zip(*told, strict=True)
                for place, knowledge in zip(places, self._advance(sequences, texts), strict=True):
                    found[place] = knowledge
                self.line.flush()
        return found

    def paths(self, keys: Sequence[Hashable], limit: int) -> list[Path]:
        """Of each sequence its most likely known continuation."""
        with self.line.lock:
            return [self._path(followed, limit) for followed in map(self._followed.get, keys)]

    def _path(self, followed: _Followed | None, limit: int) -> Path:
        if followed is None or not followed.is_open:
            return _NO_PATH
        tokens, chances = self._mirrors.path(followed.row, min(limit, followed.room))
        if not tokens:
            return _NO_PATH
        if not self._mirrors.has_drawn(followed.row):
            return Path(tokens, chances)
        # As far as it is known what the tokens were drawn from.
        drawn = self._mirrors.drawn_along(followed.row, tokens)
        return Path(tokens[: len(drawn)], chances[: len(drawn)], drawn)

    def wait(self, keys: Sequence[Hashable], timeout: float) -> None:
        """Until something is known of one of the sequences, but no longer than so many seconds."""
        clock = self.line.clock
        deadline = clock() + timeout
        while self.is_ready and not any(path.tokens for path in self.paths(keys, 1)):
            left = deadline - clock()
            if left <= 0:
                return
            self.line.read(left)

    def take_step_spans(self) -> list[tuple[float, float, int]]:
        """Start, end and rows of the draft's latest steps, since the last call."""
        with self.line.lock:
            spans = list(self._step_spans)
            self._step_spans.clear()
            return spans

    def check_integrity(self) -> None:
        with self.line.lock:
            self._mirrors.check_integrity()
            rows = sorted([*self._by_row, *self._free_rows])
        if rows != list(range(len(rows))):
            raise RuntimeError("a row of the mirrors is lost or used twice")

    # What the line says.

    def greeted(self, strand: Strand) -> None:
        self._open_all()

    def lost(self, strand: Strand) -> None:
        left = [followed for followed in self._followed.values() if followed.strand is strand]
        for followed in self._followed.values():
            followed.declined.pop(strand, None)
        for followed in left:
            self._part(followed)
        self._open_all()
        self.stats.num_moved += sum(followed.is_open for followed in left)

    def leave(self, strand: Strand) -> None:
        left = [followed for followed in self._followed.values() if followed.strand is strand]
        for followed in left:
            self._close(followed)
        self._open_all(but=strand)
        self.stats.num_moved += sum(followed.is_open for followed in left)

    def lighten(self, strand: Strand) -> None:
        """The shortest text: the others read it soonest."""
        for followed in sorted(self._movable(strand), key=lambda each: len(each.tokens))[:1]:
            self._move(followed)

    def hand_on(self, strand: Strand) -> int:
        """All that another draft would take; the rest hope that it comes back. How many went."""
        movable = self._movable(strand)
        for followed in movable:
            self._move(followed)
        return len(movable)

    def _movable(self, strand: Strand) -> list[_Followed]:
        its = (followed for followed in self._followed.values() if followed.strand is strand)
        return [each for each in its if self._choose(each, strand) is not None]

    def _move(self, followed: _Followed) -> None:
        strand = followed.strand
        self._close(followed)
        self._open(followed, but=strand)
        self.stats.num_moved += followed.is_open

    def take(self, message: AnyMessage, strand: Strand) -> None:
        match message:
            case Nodes():
                self.stats.num_frames += 1
                strand.note_nodes(message.columns())
                self._mirrors.take(message)
            case Resync():
                followed = self._current(message.seq, message.epoch)
                if followed is not None:
                    self.stats.num_resyncs += 1
                    self._open(followed)
                    self.line.flush()
            case Close():
                followed = self._current(message.seq, message.epoch)
                if followed is not None:
                    self._decline(followed, strand, message.reason, may_return=message.may_return)
                    self._open(followed)
                    self.line.flush()
            case Stats():
                self._note_stats(message, strand)

    def _open_all(self, *, but: Strand | None = None) -> None:
        for followed in self._followed.values():
            if not followed.is_open:
                self._open(followed, but=but)

    def _advance(self, sequences: Sequence[_Followed], texts: Sequence[Sequence[int]]) -> list[Knowledge]:
        mirrors, rows = self._mirrors, [each.row for each in sequences]
        knowledge = mirrors.advance(rows, texts)
        named, counts = np.array(rows), np.array([len(tokens) for tokens in texts])
        heads = OutcomeHeads(named, mirrors.epoch[named], mirrors.n[named], mirrors.num_frames[named], counts)
        for strand, mine in _by_strand(sequences):
            strand.note_told()
            first = rows[0 if mine is None else mine[0]]
            strand.note_asked(first, int(mirrors.n[first]))
            _note_lateness(strand, knowledge if mine is None else [knowledge[place] for place in mine])
            said = heads if mine is None else OutcomeHeads(*(column[mine] for column in heads))
            spoken = texts if mine is None else [texts[place] for place in mine]
            strand.post(Outcome.of(said, [*chain.from_iterable(spoken)]))
        if mirrors.is_torn[named].any():
            for followed in sequences:
                self._ask_if_torn(followed)
        return knowledge

    def _ask_if_torn(self, followed: _Followed) -> None:
        row, n = followed.row, int(self._mirrors.n[followed.row])
        is_due = self._mirrors.is_torn[row] and n - followed.asked_at >= _ROUNDS_BETWEEN_RESYNCS
        if is_due and followed.strand is not None:
            followed.asked_at = n
            self.stats.num_resyncs += 1
            followed.strand.post(Resync(row, int(self._mirrors.epoch[row])))

    def _is_sayable(self, followed: _Followed, tokens: Sequence[int]) -> bool:
        """False, and the draft is told no more of it, where a sequence holds tokens that the draft lacks."""
        strand = followed.strand
        if strand is None or _largest(tokens) < strand.vocab_size:
            return strand is not None
        self._close(followed)
        self._decline(followed, strand, _UNKNOWN_TOKENS)
        self._open(followed)
        return False

    def _decline(self, followed: _Followed, strand: Strand, reason: str, *, may_return: bool = False) -> None:
        logger.info("sequence %d goes on without this draft: %s", followed.row, reason)
        self.stats.num_declined += 1
        self._part(followed)
        followed.declined[strand] = may_return

    def _open(self, followed: _Followed, *, but: Strand | None = None) -> None:
        """With the draft that has it, or else with one that has not declined it."""
        while not self.is_paused and (strand := followed.strand or self._choose(followed, but)) is not None:
            if len(followed.tokens) > MAX_TOKENS:
                self._decline(followed, strand, "it is too long to be told")
            elif _largest(followed.tokens) >= strand.vocab_size:
                self._decline(followed, strand, _UNKNOWN_TOKENS)
            else:
                self._open_with(followed, strand)
                return

    def _choose(self, followed: _Followed, but: Strand | None) -> Strand | None:
        ready = [each for each in self.line.ready if each is not but and each not in followed.declined]
        return choose(ready, followed.tokens)

    def _open_with(self, followed: _Followed, strand: Strand) -> None:
        epoch = self._next_epoch()
        self._mirrors.open(followed.row, epoch, len(followed.tokens))
        strand.num_followed += followed.strand is None
        followed.strand, followed.asked_at = strand, -_ROUNDS_BETWEEN_RESYNCS
        strand.note_told()
        strand.post(
            Open(
                seq=followed.row,
                epoch=epoch,
                tokens=pack_ints(followed.tokens),
                num_prompt=followed.num_prompt,
                max_len=min(followed.max_len, MAX_ID),
                lookahead=self._distance.lookahead_with(strand.answer.value),
                sampling=_known_to(strand.vocab_size, followed.sampling),
            )
        )

    def _bring_back(self, strand: Strand) -> None:
        """One of those that the draft had no room for."""
        for followed in self._followed.values():
            if not followed.is_open and followed.declined.get(strand):
                del followed.declined[strand]
                self._open(followed)
                self.line.flush()
                return

    def _close(self, followed: _Followed) -> None:
        if followed.strand is not None:
            followed.strand.post(Close(followed.row, int(self._mirrors.epoch[followed.row])))
            self._part(followed)

    def _part(self, followed: _Followed) -> None:
        """It is with no draft."""
        self._mirrors.close(followed.row)
        if followed.strand is not None:
            followed.strand.num_followed -= 1
            followed.strand = None

    def _current(self, seq: int, epoch: int) -> _Followed | None:
        """The sequence, if the epoch is the one it is open under: an older one's words mean nothing."""
        followed = self._by_row.get(seq)
        is_current = followed is not None and followed.is_open and self._mirrors.epoch[seq] == epoch
        return followed if is_current else None

    def _note_stats(self, stats: Stats, strand: Strand) -> None:
        last, strand.stats = strand.stats, stats
        ours, announced = self.stats, [each.stats for each in self.line.strands if each.stats is not None]
        ours.num_sequences = sum(each.num_sequences for each in announced)
        ours.kv_usage = max((each.kv_usage for each in announced), default=0.0)
        if strand.is_roomy:
            self._bring_back(strand)
        if last is None:
            return  # What it did for others, or before, is not this engine's.
        steps, seconds = stats.num_steps - last.num_steps, stats.seconds - last.seconds
        if steps > 0:
            ours.num_steps += steps
            ours.draft_seconds += seconds
            ours.step_seconds = strand.step_seconds = seconds / steps
        self._step_spans.extend(stats.step_spans)


def _note_lateness(strand: Strand, knowledge: Sequence[Knowledge]) -> None:
    """How many of the sequences it had foreseen, and of how many it said so too late."""
    num_late = knowledge.count(Knowledge.LATE)
    if num_late or Knowledge.HIT in knowledge:
        strand.note_rounds(num_late, num_late + knowledge.count(Knowledge.HIT))


def _by_strand(sequences: Sequence[_Followed]) -> "Iterable[tuple[Strand, list[int] | None]]":
    """Each draft with the places of its sequences; None: all of them."""
    first = sequences[0].strand
    if first is not None and all(each.strand is first for each in sequences):
        return [(first, None)]
    places = defaultdict[Strand, list[int]](list)
    for place, each in enumerate(sequences):
        if each.strand is not None:
            places[each.strand].append(place)
    return places.items()


def _largest(tokens: Sequence[int]) -> int:
    return int(np.frombuffer(tokens, np.int32).max()) if isinstance(tokens, array) else max(tokens)


def _known_to(vocab_size: int, sampling: Sampling) -> Sampling:
    """What concerns tokens that the draft does not have is left out: it never guesses them."""
    return msgspec.structs.replace(
        sampling,
        logit_bias=[each for each in sampling.logit_bias if each[0] < vocab_size],
        bad_word_ids=[word for word in sampling.bad_word_ids if max(word, default=0) < vocab_size],
    )
