"""Finds runs on a device: what followed the last time that the tokens of a path stood in its text.

The same guesses as `Repeats` (ngram.py) and `find_runs` (server/host_steps.py) make on the host, by a fixed
list of operations: a device selects a step's rows, so the host cannot know what they continue. The window of
each text is in a table, the token of position p at p mod WINDOW. Knows tables and rows; does not know models.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.draft.tree.forest import RunRows
from ssd.draft.tree.tables import NO_TOKEN, WORD, Shape, Tables, TreeRows
from ssd.ngram import LONGEST, SHORTEST, WINDOW

MAX_DEPTH = 64
"""Most drafted tokens between a root and a row that are looked at."""
_NEVER = WINDOW


@dataclass(frozen=True, slots=True)
class RecentText:
    """The last tokens of each text."""

    tokens: Tensor  # [S, WINDOW + 1]; the last column is scratch

    @classmethod
    def of(cls, shape: Shape, device: torch.device) -> "RecentText":
        return cls(torch.full((shape.sequences + 1, WINDOW + 1), NO_TOKEN, device=device))

    def append(self, length: Tensor, count: Tensor, tokens: Tensor) -> None:
        """Appends `count` tokens [S] of `tokens` [S, K] to texts of this length [S]."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        at = torch.where(place < count[:, None], (length[:, None] + place) % WINDOW, WINDOW)
        self.tokens.scatter_(1, at, tokens)


def empty_paths(shape: Shape, num_rows: int, device: torch.device) -> Tensor:
    """For the tokens [W, depth + 1] of each row's path; −1: none. The last column is scratch."""
    return torch.full((num_rows, min(MAX_DEPTH, shape.slots) + 1), NO_TOKEN, device=device)


class PathReader:
    """Reads the drafted tokens between each row of a step and its root."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._slots = shape.slots
        self._depth = min(MAX_DEPTH, shape.slots)
        self._bits = torch.arange(WORD, device=device)
        self._minus = torch.full((), NO_TOKEN, device=device)

    def of(self, tables: Tables, rows: TreeRows) -> Tensor:
        """Tokens [W, depth + 1] by depth, the row's own included; −1: none. The last column is scratch."""
        sequence = rows.sequence
        length = tables.length[sequence][:, None]
        bits = (rows.ancestors[:, :, None] >> self._bits) & 1
        is_above = bits.transpose(0, 1).reshape(len(sequence), -1)[:, : self._slots] != 0
        depth = tables.position[sequence, : self._slots] - length
        found = self._minus.expand(len(sequence), self._depth + 1).clone()
        self._put(found, depth, tables.token[sequence, : self._slots], is_above)
        self._put(found, rows.position[:, None] - length, rows.token[:, None], ~rows.is_read[:, None])
        return found

    def with_runs(self, own: Tensor, tables: Tables, rows: TreeRows, runs: RunRows) -> Tensor:
        """The paths of all rows: a run's row continues its owner's path with the run's tokens before it."""
        count = len(runs.owner)
        number = torch.arange(count, device=own.device)
        owner = runs.owner.clamp(min=0)
        found = own[owner].clone()
        # The k-th row of a run has the tokens 0 to k.
        first = number - runs.place
        is_mine = (number[None] >= first[:, None]) & (number[None] <= number[:, None])
        length = tables.length[rows.sequence[owner]][:, None]
        depth = rows.position[owner][:, None] + 1 + runs.place[None] - length
        is_mine = is_mine & (runs.owner >= 0)[:, None]
        self._put(found, depth, runs.token.expand(count, count), is_mine)
        return torch.cat((own, found))

    def _put(self, found: Tensor, depth: Tensor, tokens: Tensor, is_meant: Tensor) -> None:
        """Columns that are not meant, and depths beyond the last, go to scratch."""
        is_meant = is_meant & (depth >= 0) & (depth < self._depth)
        found.scatter_(1, torch.where(is_meant, depth, self._depth), tokens)
        found[:, self._depth] = self._minus


class RunFinder:
    """Finds each row's path, and the runs of a step."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._shape = shape
        self._reader = PathReader(shape, device)
        self._places = torch.arange(WINDOW, device=device)
        self._numbers = torch.arange(shape.num_rows, device=device)
        self._run = torch.arange(shape.lookup, device=device)

    def find(self, tables: Tables, rows: TreeRows, recent: RecentText, runs: RunRows, paths: Tensor) -> None:
        """Writes the runs of a step whose own rows are `rows`, and the paths of all rows."""
        found = self._reader.of(tables, rows)
        if self._shape.lookup:
            self._write_runs(tables, rows, found, recent, runs)
            found = self._reader.with_runs(found, tables, rows, runs)
        paths.copy_(found)

    def _write_runs(
        self, tables: Tables, rows: TreeRows, paths: Tensor, recent: RecentText, runs: RunRows
    ) -> None:
        text = self._with_paths(tables, rows, paths, recent)
        total = rows.position + 1
        age = self._latest(text, total)
        take = torch.minimum(age % _NEVER, self._room(tables, rows))
        take = torch.where(self._may_start(rows), take, 0)
        before = (self._precedes(tables, rows) * take[:, None]).sum(0)
        take = torch.minimum(take, (self._shape.lookup - before).clamp(min=0))
        is_mine = (before[:, None] <= self._run) & (self._run < (before + take)[:, None])
        owner = (is_mine * self._numbers[:, None]).sum(0)
        has_run = is_mine.any(0)
        place = self._run - before[owner]
        token = text[owner, (total[owner] - age[owner] + place) % WINDOW]
        runs.owner.copy_(torch.where(has_run, owner, -1))
        runs.place.copy_(torch.where(has_run, place, 0))
        runs.token.copy_(torch.where(has_run, token, 0))

    def _with_paths(self, tables: Tables, rows: TreeRows, paths: Tensor, recent: RecentText) -> Tensor:
        """Each row's text and path [W, WINDOW + 1]."""
        length = tables.length[rows.sequence][:, None]
        depth = torch.arange(paths.shape[1], device=paths.device)
        at = torch.where(paths != NO_TOKEN, (length + depth) % WINDOW, WINDOW)
        return recent.tokens[rows.sequence].scatter_(1, at, paths)

    def _latest(self, text: Tensor, total: Tensor) -> Tensor:
        """How many tokens before the end the same few tokens ended; `_NEVER` if they are new."""
        last = total[:, None] - 1
        age = (last - self._places) % WINDOW
        known = total[:, None].clamp(max=WINDOW)
        window, alike, best = text[:, :WINDOW], age > 0, torch.full_like(total, _NEVER)
        for size in range(1, LONGEST + 1):
            end = text.gather(1, (last - (size - 1)) % WINDOW)
            alike = alike & (window.roll(size - 1, 1) == end)
            if size >= SHORTEST:
                found = torch.where(alike & (age <= known - size), age, _NEVER).amin(1)
                # More tokens that are alike say more.
                best = torch.where(found < _NEVER, found, best)
        return best

    def _room(self, tables: Tables, rows: TreeRows) -> Tensor:
        """How many tokens a run may have below each row, at most."""
        slots, sequence = self._shape.slots, rows.sequence
        is_taken = rows.attaches & ~rows.is_read
        taken = (is_taken & (rows.home == rows.home[:, None])).sum(1)
        room = slots - tables.is_used[sequence, :slots].sum(1) - taken
        room = torch.minimum(room, tables.last_position[sequence] - rows.position)
        found: Tensor = room.clamp(min=0, max=self._shape.lookup)
        return found

    def _may_start(self, rows: TreeRows) -> Tensor:
        """Roots that are read, and the first row of each tree."""
        is_first = rows.is_read | (rows.start == self._numbers)
        found: Tensor = rows.attaches & is_first
        return found

    def _precedes(self, tables: Tables, rows: TreeRows) -> Tensor:
        """Which row [j, i] comes before which: roots first, texts that are still read last, then by key."""
        sequence = rows.sequence
        length = tables.is_new[sequence] * tables.length[sequence]
        found: Tensor = rows.key[:, None] < rows.key
        for column in (length, ~rows.is_read):
            mine, its = column[:, None].long(), column.long()
            found = (mine < its) | ((mine == its) & found)
        return found
