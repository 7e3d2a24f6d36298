"""The host's end of the draft: mirrors of all its sequences, whatever happens to the other side.

Nothing here waits unless told how long. A draft that is lost takes the mirrors with it; when the next one is
ready every sequence is opened again from its tokens. Knows the protocol, the mirrors and tokens. Does not
know the target or an engine: sequences go by any key, sampling parameters come as they travel.
"""

import random
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import msgspec
import numpy as np

from ssd.draft.branching import first_nodes, parents_of, simplified
from ssd.draft.followed import ROUNDS_BETWEEN_RESYNCS, UNKNOWN_TOKENS, Followed, largest
from ssd.draft.guide import Place, num_certain, path_under
from ssd.draft.homes import Homes
from ssd.draft.line import Line, LineStats
from ssd.draft.messages import (
    MAX_COUNT,
    AnyMessage,
    Close,
    Nodes,
    Outcome,
    OutcomeHeads,
    Resync,
    Sampling,
    Stats,
)
from ssd.draft.mirrors import Distribution, Knowledge, Mirrors
from ssd.draft.offers import Bounds, likely_nodes
from ssd.draft.strand import Sources, Strand

Key = TypeVar("Key", bound=Hashable)

_KEPT_SPANS = 256
_MOST_TENANTS = 16
"""Names by which drafts may know this host."""


class Path(msgspec.Struct, frozen=True):
    """A speculation: tokens, and the chance that the text runs through each of them."""

    tokens: Sequence[int] = ()
    chances: Sequence[float] = ()
    drawn: Sequence[Distribution] | None = None
    """Under ratio acceptance, what each token was drawn from."""
    parents: Sequence[int] | None = None
    """Of each token, the place of the one it follows, or -1: the text's end. None: the one before it."""
    num_certain: int = 0
    """Of its first tokens, those that must follow by the request's grammar, whatever a draft says."""

    def cut(self, length: int) -> "Path":
        """The first tokens; of a tree too, since parents come before their children."""
        if length == len(self.tokens):
            return self
        drawn = None if self.drawn is None else self.drawn[:length]
        parents = None if self.parents is None else simplified(self.parents[:length])
        certain = min(length, self.num_certain)
        return Path(self.tokens[:length], self.chances[:length], drawn, parents, certain)

    def behind(self, tokens: Sequence[int]) -> "Path":
        """The same after tokens that are certain."""
        if not tokens:
            return self
        count = len(tokens)
        parents = parents_of(self.parents, len(self.tokens))
        moved = [*range(-1, count - 1), *(count + each for each in parents)]
        chances = [*[1.0] * count, *self.chances]
        certain = count + self.num_certain
        return Path([*tokens, *self.tokens], chances, None, simplified(moved), certain)

    def chain(self) -> "Path":
        """Of a tree the likeliest path."""
        if self.parents is None:
            return self
        nodes = first_nodes(self.parents)
        tokens, chances = [self.tokens[each] for each in nodes], [self.chances[each] for each in nodes]
        return Path(tokens, chances, num_certain=self.num_certain)


_NO_PATH = Path()
Places = Mapping[Any, Place]
"""Where the texts stand that must keep to a grammar."""
UNGUIDED: Places = {}


class DraftClient:
    def __init__(
        self,
        sources: Sources,
        *,
        lookahead: int,
        num_sequences: int = 0,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`num_sequences`: there is room for so many from the start; with more it grows, which takes time.

        `draw`: the next random number from 0 to 1, for the time until a lost draft is tried again.
        """
        self.line = Line(sources, self, clock, draw)
        self._mirrors = Mirrors(num_sequences)
        self._homes = Homes(self.line, self._mirrors, lookahead, clock)
        self._followed: dict[Hashable, Followed] = {}
        self._tenants: set[str] = set()
        self._step_spans: deque[tuple[float, float, int]] = deque(maxlen=_KEPT_SPANS)

    @property
    def stats(self) -> LineStats:
        return self.line.stats

    @property
    def is_ready(self) -> bool:
        return self.line.is_ready

    @property
    def is_paused(self) -> bool:
        """The draft rests: nothing is told to it."""
        return self._homes.is_paused

    def __contains__(self, key: Hashable) -> bool:
        return key in self._followed

    def strangers_among(self, keys: Sequence[Key]) -> list[Key]:
        """Those that nobody follows."""
        followed = self._followed
        return [key for key in keys if key not in followed]

    def follow(
        self,
        key: Hashable,
        tokens: Iterable[int],
        num_prompt: int,
        sampling: Sampling,
        max_len: int,
        *,
        draft_name: str = "",
    ) -> None:
        """Speculates for a sequence from here on; one that goes by this key already begins again.

        `draft_name`: what the drafts call themselves that are to do it; empty, or where there is none: any.
        """
        with self.line.lock:
            self.forget(key)
            row = self._homes.free_row()
            followed = Followed(row, array("i", tokens), num_prompt, sampling, max_len, draft_name=draft_name)
            self._followed[key] = followed
            self._homes.add(followed)
            self.line.flush()

    def forget(self, key: Hashable) -> None:
        with self.line.lock:
            followed = self._followed.pop(key, None)
            if followed is not None:
                self._homes.remove(followed)
                self.line.flush()

    def pause(self) -> None:
        """Tells the draft nothing more, so that it rests."""
        with self.line.lock:
            self._homes.pause()
            self.line.flush()

    def resume(self) -> None:
        with self.line.lock:
            self._homes.resume()
            self.line.flush()

    def text_of(self, key: Hashable) -> "tuple[array[int], int]":
        """The text so far, and how many drafted tokens may follow; empty where nobody follows it."""
        followed = self._followed.get(key)
        if followed is None:
            return array("i"), 0
        count = len(followed.foretold)
        return followed.tokens[:-count] if count else followed.tokens, followed.room

    def outcomes(self, outcomes: Sequence[tuple[Hashable, Sequence[int]]]) -> list[Knowledge]:
        """Verifications have ended with these tokens: what is known about what follows each?"""
        found = [Knowledge.UNHEARD] * len(outcomes)
        with self.line.lock:
            told = list[tuple[int, Followed, Sequence[int]]]()
            for place, (key, tokens) in enumerate(outcomes):
                followed = self._followed.get(key)
                if followed is None:
                    continue
                try:
                    new = followed.take_decided(tokens)
                except OverflowError:  # A token that no model has: nobody can follow such a text.
                    self.forget(key)
                    continue
                if new is None:
                    self._homes.open(followed)
                elif not new:
                    found[place] = self._mirrors.knowledge(followed.row) if followed.is_open else found[place]
                elif followed.is_open and self._is_sayable(followed, new):
                    told.append((place, followed, new))
            if told:
                self._homes.distance.note_round()
                places, sequences, texts = zip(*told, strict=True)
                for place, knowledge in zip(places, self._advance(sequences, texts), strict=True):
                    found[place] = knowledge
            self.line.flush()
        return found

    def foretell(self, certain: Sequence[tuple[Hashable, Sequence[int]]]) -> None:
        """Tokens that must follow texts, before they are verified: drafts go on behind them meanwhile."""
        with self.line.lock:
            told = list[tuple[Followed, Sequence[int]]]()
            for key, tokens in certain:
                followed = self._followed.get(key)
                if followed is None or not followed.is_open:
                    continue
                new = tokens[len(followed.foretold) :]
                if new and self._is_sayable(followed, new):
                    followed.tokens.extend(new)
                    followed.foretold = (*followed.foretold, *new)
                    told.append((followed, new))
            if told:
                self._advance(*zip(*told, strict=True))
                self.line.flush()

    def paths(
        self,
        keys: Sequence[Hashable],
        limit: int,
        places: Places = UNGUIDED,
        *,
        trees: Bounds | None = None,
    ) -> list[Path]:
        """Of each sequence its most likely known continuation, that its grammar allows if it has one.

        `trees`: several of them at once, within these bounds.
        """
        with self.line.lock:
            asked = [*map(self._followed.get, keys)]
            if places or trees is not None:
                pairs = zip(asked, map(places.get, keys), strict=True)
                return [self._offer(followed, limit, place, trees) for followed, place in pairs]
            return [self._path(followed, limit) for followed in asked]

    def _offer(
        self, followed: Followed | None, limit: int, place: Place | None, trees: Bounds | None
    ) -> Path:
        """A token that is drawn may not be passed over for what it is: such a path is given as it is."""
        if followed is None or followed.sampling.ratio or (place is None and trees is None):
            return self._path(followed, limit)
        row, foretold = followed.row, followed.foretold[: min(limit, followed.room)]
        limit = min(limit, followed.room) - len(foretold)
        for token in foretold:
            place = None if place is None else place.after(token)
        node = self._mirrors.end_of(row) if followed.is_open else None
        if trees is not None:
            bounds = replace(trees, depth=limit)
            tokens, chances, parents = likely_nodes(self._mirrors, row, node, place, bounds)
        else:
            found = ([], []) if place is None else path_under(self._mirrors, row, node, limit, place)
            (tokens, chances), parents = found, [*range(-1, len(found[0]) - 1)]
        certain = 0 if place is None else num_certain(chances)
        return Path(tokens, chances, None, simplified(parents), certain).behind(foretold)

    def _path(self, followed: Followed | None, limit: int) -> Path:
        # What was foretold lies between the text and the tree: who does not know the grammar cannot tell.
        if followed is None or not followed.is_open or followed.foretold:
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
        while self.is_ready and not self._is_any_known(keys):
            left = deadline - clock()
            if left <= 0:
                return
            self.line.read(left)

    def _is_any_known(self, keys: Sequence[Hashable]) -> bool:
        with self.line.lock:
            asked = [each for key in keys if (each := self._followed.get(key)) is not None and each.is_open]
            return any(self._mirrors.path(each.row, 1)[0] for each in asked)

    def take_step_spans(self) -> list[tuple[float, float, int]]:
        """Start, end and rows of the draft's latest steps, since the last call."""
        with self.line.lock:
            spans = list(self._step_spans)
            self._step_spans.clear()
            return spans

    def check_integrity(self) -> None:
        with self.line.lock:
            self._mirrors.check_integrity()
            self._homes.check_integrity()

    # What the line says.

    def greeted(self, strand: Strand) -> None:
        self._homes.open_all()

    def lost(self, strand: Strand) -> None:
        self._homes.lost(strand)
        self._note_loads()

    def leave(self, strand: Strand) -> None:
        self._homes.leave(strand)

    def lighten(self, strand: Strand) -> None:
        self._homes.lighten(strand)

    def hand_on(self, strand: Strand) -> int:
        return self._homes.hand_on(strand)

    def take(self, message: AnyMessage, strand: Strand) -> None:
        match message:
            case Nodes():
                self.stats.num_frames += 1
                strand.note_nodes(message.columns())
                self._mirrors.take(message)
            case Resync():
                followed = self._homes.current(message.seq, message.epoch)
                # One that lies may ask again and again, and each answer is the whole text.
                if followed is not None and followed.may_begin_again(int(self._mirrors.n[message.seq])):
                    self.stats.num_resyncs += 1
                    self._homes.open(followed)
                    self.line.flush()
            case Close():
                followed = self._homes.current(message.seq, message.epoch)
                if followed is not None:
                    self._homes.declined_by(strand, followed, message)
                    self.line.flush()
            case Stats():
                self._note_stats(message, strand)

    def _advance(self, sequences: Sequence[Followed], texts: Sequence[Sequence[int]]) -> list[Knowledge]:
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

    def _ask_if_torn(self, followed: Followed) -> None:
        row, n = followed.row, int(self._mirrors.n[followed.row])
        is_due = self._mirrors.is_torn[row] and n - followed.asked_at >= ROUNDS_BETWEEN_RESYNCS
        if is_due and followed.strand is not None:
            followed.asked_at = n
            self.stats.num_resyncs += 1
            followed.strand.post(Resync(row, int(self._mirrors.epoch[row])))

    def _is_sayable(self, followed: Followed, tokens: Sequence[int]) -> bool:
        """False, and the draft is told no more of it, where a sequence holds tokens that the draft lacks."""
        strand = followed.strand
        if strand is None or largest(tokens) < strand.vocab_size:
            return strand is not None
        self._homes.decline(followed, strand, UNKNOWN_TOKENS)
        self._homes.open(followed)
        return False

    def _note_stats(self, stats: Stats, strand: Strand) -> None:
        last = strand.stats
        strand.note_stats(stats)
        self._note_loads()
        ours = self.stats
        ours.tenant = self._known_name(stats.tenant)
        if strand.is_roomy:
            self._homes.bring_back(strand)
            self.line.flush()
        if last is None:
            return  # What it did for others, or before, is not this engine's.
        rows = max(0, stats.num_own_rows - last.num_own_rows)
        ours.num_own_rows = min(ours.num_own_rows + rows, MAX_COUNT)
        steps, seconds = stats.num_steps - last.num_steps, max(0.0, stats.seconds - last.seconds)
        if steps > 0:
            ours.num_steps = min(ours.num_steps + steps, MAX_COUNT)
            ours.draft_seconds += seconds
            ours.step_seconds = strand.step_seconds = seconds / steps
        self._step_spans.extend(stats.step_spans)

    def _note_loads(self) -> None:
        announced = [each.stats for each in self.line.strands if each.stats is not None]
        self.stats.num_sequences = sum(each.num_sequences for each in announced)
        self.stats.kv_usage = max((each.kv_usage for each in announced), default=0.0)

    def _known_name(self, tenant: str) -> str:
        """A draft that lies may call the host by ever other names, and each stays in the metrics."""
        if len(self._tenants) < _MOST_TENANTS:
            self._tenants.add(tenant)
        return tenant if tenant in self._tenants else "other"


def _note_lateness(strand: Strand, knowledge: Sequence[Knowledge]) -> None:
    """How many of the sequences it had foreseen, and of how many it said so too late."""
    num_late = knowledge.count(Knowledge.LATE)
    if num_late or Knowledge.HIT in knowledge:
        strand.note_rounds(num_late, num_late + knowledge.count(Knowledge.HIT))


def _by_strand(sequences: Sequence[Followed]) -> "Iterable[tuple[Strand, list[int] | None]]":
    """Each draft with the places of its sequences; None: all of them."""
    first = sequences[0].strand
    if first is not None and all(each.strand is first for each in sequences):
        return [(first, None)]
    places = defaultdict[Strand, list[int]](list)
    for place, each in enumerate(sequences):
        if each.strand is not None:
            places[each.strand].append(place)
    return places.items()
