"""Edits of a step's logits on the host.

`LogitEdits` applies the parameters that depend on tokens (penalties, bias, bad words, minimum length) in
place on arrays, before children are chosen (on a device: tree/device_edits.py). Only entries of tokens
that occur are touched: a text's own tokens, once for all of its rows, and each row's tokens between the root
and itself. Formulas and their order are those of `sampling/processors.py`, so the edited logits are equal to
the bit. Knows texts and tables; does not know sockets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.draft.server.session import DraftSession, Longs
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.tables import WORD

_MASK = (1 << WORD) - 1
Texts = Mapping[int, DraftSession]
"""By row of the tables."""


class Paths:
    """The paths between the root and the rows of a step."""

    def __init__(self, forest: Forest) -> None:
        rows, to_host = forest.rows, forest.xp.to_host
        self._is_read, self._sequence = to_host(rows.is_read), to_host(rows.sequence)
        self._ancestors, self._last = to_host(rows.ancestors), to_host(rows.token)
        self._position, self._token = to_host(forest.tables.position), to_host(forest.tables.token)

    def to(self, row: int) -> list[int]:
        """The tokens after the root, up to and including the row's own."""
        if self._is_read[row]:
            return []
        last = int(self._last[row])
        slots = list(_slots(self._ancestors[:, row].tolist()))
        if not slots:
            return [last]
        sequence = int(self._sequence[row])
        if len(slots) > 1:
            slots.sort(key=self._position[sequence].__getitem__)
        return [*self._token[sequence, slots].tolist(), last]


def _slots(words: Sequence[int]) -> Iterator[int]:
    """The numbers of the bits that are set."""
    for number, word in enumerate(words):
        rest = word & _MASK
        while rest:
            yield number * WORD + (rest & -rest).bit_length() - 1
            rest &= rest - 1


_Number = TypeVar("_Number", bound=np.generic)
_NO_TOKEN = -(1 << 62)
"""Padding before the first token of a text. No bad word contains it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Entries of the logits: numbers of edited rows, and tokens."""

    rows: Longs
    tokens: Longs


class TextEdits:
    """The parameters of one session as columns. Made once, when the session is opened."""

    def __init__(self, session: DraftSession) -> None:
        params, sampling = session.params, session.opening.sampling
        self.session = session
        self.num_prompt, self.min_tokens = session.opening.num_prompt, params.min_tokens
        self.end_ids = np.array(sampling.end_ids if params.min_tokens else (), np.int64)
        self.bias_ids = np.array([token for token, _ in params.bias], np.int64)
        self.bias = np.array([value for _, value in params.bias], np.float32)
        self.penalties = np.array(
            (params.repetition_penalty, params.frequency_penalty, params.presence_penalty), np.float32
        )
        words = sampling.bad_word_ids
        self.never = np.array([word[0] for word in words if len(word) == 1], np.int64)
        """Bad words of one token."""
        self.words = {
            size: np.array([word for word in words if len(word) == size], np.int64)
            for size in {len(word) for word in words if len(word) > 1}
        }
        """Longer ones, by length [N, length]."""

    def endings(self, tails: Longs) -> Places:
        """Tokens that would complete a bad word of several tokens.

        `tails` [R, L]: the last tokens of each row, latest first.
        """
        found = list[Places]()
        for size, words in self.words.items():
            row, word = np.nonzero((tails[:, None, : size - 1] == words[:, -2::-1]).all(2))
            found.append(Places(row, words[word, -1]))
        return _joined(found)

    @property
    def forbids(self) -> bool:
        return bool(self.words or len(self.never) or len(self.end_ids))

    @property
    def longest_start(self) -> int:
        """Tokens of the longest bad word before its last."""
        return max(self.words) - 1


def edits_of(session: DraftSession) -> TextEdits | None:
    """None if no parameter of the session depends on tokens."""
    params, sampling = session.params, session.opening.sampling
    has_minimum = bool(params.min_tokens and sampling.end_ids)
    if params.bias or sampling.bad_word_ids or params.penalised or has_minimum:
        return TextEdits(session)
    return None


class EditedRows:
    """The rows of a step that attach children and need edits, in the order of their sequences. On arrays."""

    def __init__(self, forest: Forest, texts: Mapping[int, TextEdits]) -> None:
        rows = forest.rows
        is_edited = np.zeros(forest.shape.sequences + 1, np.bool_)
        is_edited[list(texts)] = True
        chosen = np.flatnonzero(is_edited[rows.sequence] & rows.attaches)
        chosen = chosen[np.argsort(rows.sequence[chosen], kind="stable")]
        # Rows that attach nothing have no logits.
        self.places: Longs = (rows.attaches.cumsum() - 1)[chosen]
        self.sequence: Longs = rows.sequence[chosen]
        self._forest, self._chosen = forest, chosen
        self.position: Longs = rows.position[chosen]
        numbers, firsts = np.unique(self.sequence, return_index=True)
        ends = np.append(firsts, len(chosen))[1:]
        self.of_text = [
            (texts[number], slice(first, end))
            for number, first, end in zip(numbers.tolist(), firsts.tolist(), ends.tolist(), strict=True)
        ]
        """Each session that has edited rows, with its rows."""

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def drafted(self) -> tuple[Places, Longs]:
        """All tokens between the root and a row, including the row's own, and their distance to the row."""
        rows, tables, chosen = self._forest.rows, self._forest.tables, self._chosen
        sequences, slots, is_read = rows.sequence, rows.slot, rows.is_read
        tokens, positions = tables.token.copy(), tables.position.copy()
        # Nodes of this step are not in the tables yet, and rows of a run have other rows as parents.
        now = np.flatnonzero(rows.attaches & ~is_read)
        tokens[sequences[now], slots[now]] = rows.token[now]
        positions[sequences[now], slots[now]] = rows.position[now]
        words = rows.ancestors[:, chosen]
        bits = (words[:, :, None] >> np.arange(WORD)) & 1
        row, slot = np.nonzero(bits.transpose(1, 0, 2).reshape(len(chosen), -1))
        own = np.flatnonzero(~is_read[chosen])
        row, slot = np.concatenate((row, own)), np.concatenate((slot, slots[chosen][own]))
        owner = self.sequence[row]
        return Places(row, tokens[owner, slot]), self.position[row] - positions[owner, slot]

    def tails(self, rows: slice, edits: TextEdits) -> Longs:
        """The last tokens [R, L] up to and including each of these rows, latest first."""
        width, text = edits.longest_start, edits.session.tokens
        known = np.array(text[: -width - 1 : -1], np.int64)
        depth = self.position[rows] - (len(text) - 1)
        place = np.arange(width) - depth[:, None]
        is_text = (place >= 0) & (place < len(known))
        found = np.full(place.shape, _NO_TOKEN, np.int64)
        found[is_text] = known[place[is_text]]
        drafted, before = self.drafted
        mine = (drafted.rows >= rows.start) & (drafted.rows < rows.stop) & (before < width)
        found[drafted.rows[mine] - rows.start, before[mine]] = drafted.tokens[mine]
        return found


class LogitEdits:
    """Edits logits of a head, which may be restricted to some tokens."""

    def __init__(self, head_tokens: Tensor | None) -> None:
        self._columns: Longs | None = None
        """By token: its column, −1 where the head has none."""
        if head_tokens is not None:
            head = head_tokens.numpy(force=True)
            self._columns = np.full(int(head[-1]) + 1, -1, np.int64)
            self._columns[head] = np.arange(len(head))

    @torch.inference_mode()
    def apply(self, logits: Tensor, rows: EditedRows) -> None:
        """Edits in place: bias, then penalties, then forbidden tokens."""
        self._add_bias(logits, rows)
        self._penalise(logits, rows)
        self._forbid(logits, rows)

    def _add_bias(self, logits: Tensor, rows: EditedRows) -> None:
        parts = [(each, span) for each, span in rows.of_text if len(each.bias_ids)]
        if not parts:
            return
        spread = _Spread([span for _each, span in parts], [each.bias_ids for each, _span in parts])
        places, is_kept = self._kept(spread.places, logits.shape[1])
        values = spread.of([each.bias for each, _span in parts])[is_kept]
        flat, index = _flat(logits, rows, places)
        flat.index_copy_(0, index, flat.index_select(0, index) + _on(logits, values))

    def _penalise(self, logits: Tensor, rows: EditedRows) -> None:
        parts = [(each, span) for each, span in rows.of_text if each.session.params.penalised]
        if not parts:
            return
        places, times = _counted(rows, parts)
        places, is_kept = self._kept(places, logits.shape[1])
        penalties = np.zeros((3, len(rows)), np.float32)
        for each, span in parts:
            penalties[:, span] = each.penalties[:, None]
        repetition, *others = (_on(logits, each[places.rows]) for each in penalties)
        flat, index = _flat(logits, rows, places)
        values = flat.index_select(0, index)
        values = torch.where(values > 0, values / repetition, values * repetition)
        if penalties[1:].any():
            count = _on(logits, times[is_kept].astype(np.float32))
            values -= others[0] * count
            values -= others[1] * count.clamp_(max=1.0)
        flat.index_copy_(0, index, values)

    def _forbid(self, logits: Tensor, rows: EditedRows) -> None:
        parts = list[Places]()
        for each, span in (part for part in rows.of_text if part[0].forbids):
            parts.append(_tiled(np.arange(span.start, span.stop), each.never))
            num_written = rows.position[span] + 1 - each.num_prompt
            parts.append(_tiled(span.start + np.flatnonzero(num_written < each.min_tokens), each.end_ids))
            if each.words:
                found = each.endings(rows.tails(span, each))
                parts.append(Places(found.rows + span.start, found.tokens))
        if not parts:
            return
        places, _is_kept = self._kept(_joined(parts), logits.shape[1])
        if len(places.rows):
            flat, index = _flat(logits, rows, places)
            flat.index_fill_(0, index, -torch.inf)

    def _kept(self, places: Places, width: int) -> tuple[Places, NDArray[np.bool_]]:
        """The places whose tokens the head has, with columns for tokens, and flags of the kept ones."""
        tokens = places.tokens
        most = width if self._columns is None else len(self._columns)
        is_kept = (tokens >= 0) & (tokens < most)
        if self._columns is not None:
            tokens = self._columns[np.where(is_kept, tokens, 0)]
            is_kept &= tokens >= 0
        if is_kept.all():
            return Places(places.rows, tokens), is_kept
        return Places(places.rows[is_kept], tokens[is_kept]), is_kept


class _Spread:
    """Repeats the numbers of each session for each of its rows, for all sessions at once."""

    def __init__(self, spans: Sequence[slice], tokens: Sequence[Longs]) -> None:
        num_rows = [span.stop - span.start for span in spans]
        sizes = np.array([len(each) for each in tokens], np.int64)
        by_row = np.repeat(sizes, num_rows)
        rows = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        starts = np.repeat(sizes.cumsum() - sizes, num_rows) - (by_row.cumsum() - by_row)
        self._source = np.arange(by_row.sum()) + np.repeat(starts, by_row)
        self.places = Places(np.repeat(rows, by_row), self.of(tokens))

    def of(self, numbers: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
        """`numbers`: for each session as many as it has tokens."""
        found: NDArray[_Number] = np.concatenate(numbers)[self._source]
        return found


def _counted(rows: EditedRows, parts: Sequence[tuple[TextEdits, slice]]) -> tuple[Places, Longs]:
    """Tokens that penalties apply to, each once a row, and how often the row's text contains it."""
    seen = [each.session.seen() for each, _span in parts]
    spread = _Spread([span for _each, span in parts], [ids for ids, _counts in seen])
    places, times = spread.places, spread.of([counts for _ids, counts in seen])
    is_penalised = np.zeros(len(rows), np.bool_)
    for _each, span in parts:
        is_penalised[span] = True
    drafted = rows.drafted[0]
    mine = is_penalised[drafted.rows]
    size = 1 + max(int(places.tokens.max(initial=0)), int(drafted.tokens.max(initial=0)))
    pairs: Longs = (drafted.rows * size + drafted.tokens)[mine]
    more, more_times = np.unique(pairs, return_counts=True)
    # Ascending, since rows follow the parts and each text's tokens ascend. The last key is a sentinel.
    keys = np.append(places.rows * size + places.tokens, np.array([np.iinfo(np.int64).max]))
    found: Longs = np.searchsorted(keys, more)
    is_known: NDArray[np.bool_] = keys[found] == more
    times[found[is_known]] += more_times[is_known]
    new = more[~is_known]
    return _joined([places, Places(new // size, new % size)]), np.append(times, more_times[~is_known])


def _flat(logits: Tensor, rows: EditedRows, places: Places) -> tuple[Tensor, Tensor]:
    """The logits as one vector, and the indices of the places in it."""
    return logits.view(-1), _on(logits, rows.places[places.rows] * logits.shape[1] + places.tokens)


def _tiled(rows: Longs, tokens: Longs) -> Places:
    """The same tokens for each of the rows."""
    return Places(np.repeat(rows, len(tokens)), np.tile(tokens, len(rows)))


def _joined(parts: Sequence[Places]) -> Places:
    return Places(
        np.concatenate([each.rows for each in parts]), np.concatenate([each.tokens for each in parts])
    )


def _on(logits: Tensor, values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(logits.device)
