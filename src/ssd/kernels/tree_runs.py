"""Reads the path of each row of a step, and finds the runs that start from its rows.

`PathReader` and `RunFinder` of `draft/tree/device_runs.py` are the references. The first launch reads each
row's path and finds when its last tokens occurred before; the second divides the rows of runs among those
that found something. Knows tables. Does not know models.
"""

from typing import NamedTuple

from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.tree_families import RunTable
from ssd.kernels.trees import StepRows, up_to_power


class TextTables(NamedTuple):
    """The columns of `Tables` in `draft/tree` that say how long texts are and what their trees contain."""

    length: Tensor
    is_new: Tensor
    last_position: Tensor
    is_used: Tensor
    position: Tensor
    token: Tensor


class RunPaths(NamedTuple):
    """The tokens of texts and of paths, and what each row found."""

    recent: Tensor  # [S, window + 1] the token of position p of a text is at p mod window
    paths: Tensor  # [W, depth + 1] drafted tokens of each row's path by depth; −1: none
    takes: Tensor  # [W] tokens that a run below the row may have
    ages: Tensor  # [W] how many tokens before the end they occurred


@jit()
def tokens_at(found, sequence, row, length, position, depth: tl.constexpr, window: tl.constexpr):
    """The tokens at these positions of a row's text and path; −1 before the start."""
    drafted = position - length
    is_drafted = (drafted >= 0) & (drafted < depth)
    text = found.recent + sequence * (window + 1) + position % window
    written = tl.load(text, mask=(position >= 0) & ~is_drafted, other=-1)
    path = tl.load(found.paths + row * (depth + 1) + drafted, mask=is_drafted, other=-1)
    return tl.where(is_drafted, path, written)


@jit()
def age_of_repeat(
    found,
    sequence,
    row,
    length,
    position,
    depth: tl.constexpr,
    window: tl.constexpr,
    shortest: tl.constexpr,
    longest: tl.constexpr,
):
    """How many tokens before the end the same few tokens occurred last; 0: never. More of them say more."""
    age = tl.arange(0, window)
    is_alike, best = age > 0, tl.full([], 0, tl.int32)
    known = tl.minimum(position + 1, window)
    for size in tl.static_range(1, longest + 1):
        last = position - (size - 1)
        end = tokens_at(found, sequence, row, length, last, depth, window)
        before = tokens_at(found, sequence, row, length, last - age, depth, window)
        is_alike = is_alike & (age <= known - size) & (before == end)
        if size >= shortest:
            latest = tl.min(tl.where(is_alike, age, window), 0)
            best = tl.where(latest < window, latest, best)
    return best


@jit()
def read_path(
    texts,
    rows,
    found,
    words,
    num_rows,
    slots: tl.constexpr,
    depth: tl.constexpr,
    most: tl.constexpr,
    window: tl.constexpr,
    shortest: tl.constexpr,
    longest: tl.constexpr,
    wide: tl.constexpr,
    spots: tl.constexpr,
    depths: tl.constexpr,
):
    """One program per row, without those of runs. The last three are powers of two, at least the sizes.

    `words`: offset between the two words of bits; `most`: tokens of a run.
    """
    row = tl.program_id(0).to(tl.int64)
    sequence, position = tl.load(rows.sequence + row), tl.load(rows.position + row)
    length, is_read = tl.load(texts.length + sequence), tl.load(rows.is_read + row) != 0
    slot, place = tl.arange(0, spots), tl.arange(0, depths)
    is_slot, spot = slot < slots, sequence * (slots + 1) + slot
    bits = tl.load(rows.ancestors + slot // 64 * words + row, mask=is_slot, other=0)
    is_above = ((bits >> (slot % 64).to(tl.int64)) & 1) != 0
    at = tl.load(texts.position + spot, mask=is_above, other=-1) - length
    tokens = tl.load(texts.token + spot, mask=is_above, other=-1).to(tl.int32)
    is_here = is_above[:, None] & (at[:, None] == place[None, :])
    path = tl.max(tl.where(is_here, tokens[:, None], -1), 0)
    is_own = ~is_read & (place == position - length)
    path = tl.where(is_own, tl.load(rows.token + row).to(tl.int32), path)
    tl.store(found.paths + row * (depth + 1) + place, path, mask=place < depth)
    if most > 0:
        take = tl.full([], 0, tl.int64)
        # Roots that are read, and the first row of each tree.
        may_start = (tl.load(rows.attaches + row) != 0) & (is_read | (tl.load(rows.start + row) == row))
        if may_start:
            # All threads must have written the path before any of them reads it.
            tl.debug_barrier()
            age = age_of_repeat(found, sequence, row, length, position, depth, window, shortest, longest).to(
                tl.int64
            )
            tl.store(found.ages + row, age)
            every = tl.arange(0, wide)
            is_row = every < num_rows
            is_taken = is_row & (tl.load(rows.attaches + every, mask=is_row, other=0) != 0)
            is_taken = is_taken & (tl.load(rows.is_read + every, mask=is_row, other=1) == 0)
            homes = tl.load(rows.home + every, mask=is_row, other=-1)
            is_taken = is_taken & (homes == tl.load(rows.home + row))
            used = tl.sum((tl.load(texts.is_used + spot, mask=is_slot, other=0) != 0).to(tl.int64), 0)
            room = slots - used - tl.sum(is_taken.to(tl.int64), 0)
            room = tl.minimum(room, tl.load(texts.last_position + sequence) - position)
            take = tl.minimum(age, tl.minimum(tl.maximum(room, 0), most))
        tl.store(found.takes + row, take)


@jit()
def least(is_meant, values):
    """Which of those that are meant have the least value."""
    return is_meant & (values == tl.min(tl.where(is_meant, values, 9223372036854775807), 0))


@jit()
def share_runs(
    texts,
    rows,
    found,
    runs,
    num_rows,
    depth: tl.constexpr,
    most: tl.constexpr,
    window: tl.constexpr,
    wide: tl.constexpr,
    many: tl.constexpr,
    depths: tl.constexpr,
):
    """One program: gives the rows of runs to the first rows in order, and writes their paths.

    Roots come first, texts that are still read come last. `wide`, `many` and `depths` are powers of two.
    """
    row, number, place = tl.arange(0, wide), tl.arange(0, many), tl.arange(0, depths)
    is_row = row < num_rows
    takes = tl.load(found.takes + row, mask=is_row, other=0)
    sequences = tl.load(rows.sequence + row, mask=is_row, other=0)
    is_below = (tl.load(rows.is_read + row, mask=is_row, other=0) == 0).to(tl.int64)
    is_new = tl.load(texts.is_new + sequences) != 0
    unread = tl.where(is_new, tl.load(texts.length + sequences), 0)
    keys = tl.load(rows.key + row, mask=is_row, other=0)
    filled = tl.full([], 0, tl.int64)
    for _ in range(most):
        # If none is left, row 0 starts a run of no tokens.
        is_first = least(least(least(takes > 0, is_below), unread), keys)
        owner = tl.sum(tl.where(is_first, row, 0), 0).to(tl.int64)
        count = tl.minimum(tl.sum(tl.where(is_first, takes, 0), 0), most - filled)
        sequence, position = tl.load(rows.sequence + owner), tl.load(rows.position + owner)
        length, age = tl.load(texts.length + sequence), tl.load(found.ages + owner)
        step = number - filled
        is_mine = (step >= 0) & (step < count)
        # A run repeats what followed.
        first = position + 1 - age
        tokens = tokens_at(found, sequence, owner, length, first + step, depth, window)
        tl.store(runs.owner + number, owner + step * 0, mask=is_mine)
        tl.store(runs.place + number, step, mask=is_mine)
        tl.store(runs.token + number, tokens, mask=is_mine)
        at = place - (position + 1 - length)
        above = tl.load(found.paths + owner * (depth + 1) + place, mask=place < depth, other=-1)
        said = tokens_at(found, sequence, owner, length, first + at, depth, window)
        path = tl.where(at < 0, above, said)[None, :]
        path = tl.where(at[None, :] <= step[:, None], path, -1)
        spots = (num_rows + number)[:, None] * (depth + 1) + place[None, :]
        tl.store(found.paths + spots, path, mask=is_mine[:, None] & (place < depth)[None, :])
        takes, filled = tl.where(is_first, 0, takes), filled + count
    is_free = (number >= filled) & (number < most)
    tl.store(runs.owner + number, number * 0 - 1, mask=is_free)
    tl.store(runs.place + number, number * 0, mask=is_free)
    tl.store(runs.token + number, number * 0, mask=is_free)


def find_runs(
    texts: TextTables, rows: StepRows, found: RunPaths, runs: RunTable, shortest: int, longest: int
) -> None:
    """Two launches, or one if there are no runs. `rows`: without those of runs.

    `shortest` and `longest`: how many last tokens must have occurred before.
    """
    num_rows, depth, most = len(rows.sequence), found.paths.shape[1] - 1, len(runs.owner)
    window = found.recent.shape[1] - 1
    slots = texts.is_used.shape[1] - 1
    wide, depths = up_to_power(num_rows), up_to_power(depth)
    with launching_on(rows.sequence):
        read_path[(num_rows,)](
            texts,
            rows,
            found,
            rows.ancestors.stride(0),
            num_rows,
            slots=slots,
            depth=depth,
            most=most,
            window=window,
            shortest=shortest,
            longest=longest,
            wide=wide,
            spots=up_to_power(slots),
            depths=depths,
            num_warps=8,
        )
        if most:
            share_runs[(1,)](
                texts,
                rows,
                found,
                runs,
                num_rows,
                depth=depth,
                most=most,
                window=window,
                wide=wide,
                # At least two, since a vector of one element is a scalar.
                many=max(2, up_to_power(most)),
                depths=depths,
                num_warps=4,
            )
