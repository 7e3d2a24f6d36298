"""Which draft has which sequence: opened with one, moved to another, declined, brought back, closed.

A sequence is open with one draft at a time, or with none. Whoever loses its draft gets the next best at once,
from its tokens; a request may name the drafts that are to have it. Knows the line's drafts, the mirrors and
what opens and closes a sequence. Does not know outcomes or what drafts say of the future (client.py).
Everything here is called with the line's lock held.
"""

import itertools
import logging
from collections.abc import Callable, Iterator

from ssd.draft.choice import choose
from ssd.draft.distance import Distance
from ssd.draft.followed import ROUNDS_BETWEEN_RESYNCS, Followed
from ssd.draft.line import Line
from ssd.draft.messages import Close
from ssd.draft.mirrors import Mirrors
from ssd.draft.strand import Strand

logger = logging.getLogger(__name__)


class Homes:
    def __init__(self, line: Line, mirrors: Mirrors, lookahead: int, clock: Callable[[], float]) -> None:
        self._line, self._mirrors = line, mirrors
        self.distance = Distance(lookahead, clock)
        self._by_row: dict[int, Followed] = {}
        self._free_rows: list[int] = []
        self._next_epoch = itertools.count(1).__next__
        self.is_paused = False
        """Nothing is open anywhere."""

    def __iter__(self) -> Iterator[Followed]:
        return iter(self._by_row.values())

    def free_row(self) -> int:
        """For a sequence that is about to be added."""
        return self._free_rows.pop() if self._free_rows else len(self._by_row)

    def add(self, followed: Followed) -> None:
        self._by_row[followed.row] = followed
        self.open(followed)

    def remove(self, followed: Followed) -> None:
        self.close(followed)
        del self._by_row[followed.row]
        self._free_rows.append(followed.row)

    def pause(self) -> None:
        self.is_paused = True
        for followed in self:
            self.close(followed)

    def resume(self) -> None:
        self.is_paused = False
        self.open_all()

    def current(self, seq: int, epoch: int) -> Followed | None:
        """The sequence, if the epoch is the one it is open under: an older one's words mean nothing."""
        followed = self._by_row.get(seq)
        is_current = followed is not None and followed.is_open and self._mirrors.epoch[seq] == epoch
        return followed if is_current else None

    def open_all(self, *, but: Strand | None = None) -> None:
        for followed in self:
            if not followed.is_open:
                self.open(followed, but=but)

    def open(self, followed: Followed, *, but: Strand | None = None) -> None:
        """With the draft that has it, or else with one that has not declined it."""
        while not self.is_paused and (strand := followed.strand or self._choose(followed, but)) is not None:
            reason = followed.why_not(strand)
            if not reason:
                self._open_with(followed, strand)
                return
            self.decline(followed, strand, reason)

    def close(self, followed: Followed) -> None:
        if followed.strand is not None:
            followed.strand.post(Close(followed.row, int(self._mirrors.epoch[followed.row])))
            self._part(followed)

    def decline(self, followed: Followed, strand: Strand, reason: str) -> None:
        """This draft is not asked for it again; where it has it, it is told that it is over."""
        self.close(followed)
        self._note_declined(followed, strand, reason, may_return=False)

    def declined_by(self, strand: Strand, followed: Followed, message: Close) -> None:
        """The draft does not want it: perhaps another does."""
        self._part(followed)
        self._note_declined(followed, strand, message.reason, may_return=message.may_return)
        self.open(followed)

    def lost(self, strand: Strand) -> None:
        left = self._with(strand)
        self._forget_refusals(strand)
        for followed in left:
            self._part(followed)
        self.open_all()
        self._note_moved(left)

    def leave(self, strand: Strand) -> None:
        left = self._with(strand)
        for followed in left:
            self.close(followed)
        self.open_all(but=strand)
        self._forget_refusals(strand)
        self._note_moved(left)

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

    def bring_back(self, strand: Strand) -> None:
        """Of those that the draft had no room for the shortest: it needs the least."""
        waiting = [each for each in self if not each.is_open and each.declined.get(strand)]
        for followed in sorted(waiting, key=lambda each: len(each.tokens))[:1]:
            del followed.declined[strand]
            strand.note_return()
            self.open(followed)

    def check_integrity(self) -> None:
        rows = sorted([*self._by_row, *self._free_rows])
        if rows != list(range(len(rows))):
            raise RuntimeError("a row of the mirrors is lost or used twice")

    def _forget_refusals(self, strand: Strand) -> None:
        for followed in self:
            followed.declined.pop(strand, None)

    def _with(self, strand: Strand) -> list[Followed]:
        return [followed for followed in self if followed.strand is strand]

    def _movable(self, strand: Strand) -> list[Followed]:
        return [each for each in self._with(strand) if self._choose(each, strand) is not None]

    def _move(self, followed: Followed) -> None:
        strand = followed.strand
        self.close(followed)
        self.open(followed, but=strand)
        self._note_moved([followed])

    def _choose(self, followed: Followed, but: Strand | None) -> Strand | None:
        """One that answers, if any does; of those, one of the name that its request asks for; of those, one
        that is in time."""
        found = [each for each in self._line.ready if each is not but and each not in followed.declined]
        found = [each for each in found if not each.is_stalled] or found
        if followed.draft_name:
            found = [each for each in found if each.draft_name == followed.draft_name] or found
        in_time = [each for each in found if not each.is_behind]
        return choose(in_time or found, followed.tokens)

    def _open_with(self, followed: Followed, strand: Strand) -> None:
        epoch = self._next_epoch()
        self._mirrors.open(followed.row, epoch, len(followed.tokens))
        if followed.strand is None:
            strand.num_followed += 1
            followed.num_begun_again = 0
        followed.strand, followed.asked_at = strand, -ROUNDS_BETWEEN_RESYNCS
        strand.note_told()
        strand.post(followed.opening(strand, epoch, self.distance.lookahead_with(strand.answer.value)))

    def _part(self, followed: Followed) -> None:
        """It is with no draft."""
        self._mirrors.close(followed.row)
        if followed.strand is not None:
            followed.strand.num_followed -= 1
            followed.strand = None

    def _note_declined(self, followed: Followed, strand: Strand, reason: str, *, may_return: bool) -> None:
        logger.info("sequence %d goes on without this draft: %s", followed.row, reason)
        self._line.stats.num_declined += 1
        followed.declined[strand] = may_return
        if may_return:
            strand.note_declined()

    def _note_moved(self, left: list[Followed]) -> None:
        self._line.stats.num_moved += sum(followed.is_open for followed in left)
