"""Edits logits: biases, penalties, forbidden tokens.

`DeviceEdits` of `draft/tree/device_edits.py` is the reference; its formulas and their order are those of
`sampling/processors.py`. Most columns of a row only have penalties by what the text contains. The first
launch computes the logits of the others (tokens of the path, with a bias, or forbidden); the second edits a
block of columns and then writes those. Knows columns. Does not know why a token is forbidden.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.trees import up_to_power

BLOCK = 1024


class EditRules(NamedTuple):
    """By sequence [S, …]. Columns that do not exist are `num_columns`."""

    is_edited: Tensor
    penalties: Tensor  # [3, S] repetition, frequency, presence
    seen: Tensor  # [S, num_columns + 1] twice the number of times a token was generated, + 1 if in the prompt
    bias_columns: Tensor
    biases: Tensor
    starts: Tensor  # [S, words, tokens] of bad words before their last, latest first; −1: any
    lasts: Tensor  # [S, words] columns of the last tokens of bad words
    min_length: Tensor
    length: Tensor
    ends: Tensor  # tokens
    recent: Tensor  # [S, window + 1]


class EditRows(NamedTuple):
    """The columns of `TreeRows` that edits depend on, and the tokens of the rows' paths."""

    sequence: Tensor
    position: Tensor
    attaches: Tensor
    paths: Tensor  # [W, depth + 1] by depth; −1: none


class Exceptions(NamedTuple):
    """Columns [W, …] that have more than penalties by the text, each once, and their edited logits."""

    columns: Tensor
    logits: Tensor


class EditSizes(NamedTuple):
    columns: int
    row_stride: int
    sequences: int
    exceptions: int
    head_end: int
    """Length of the table of columns, if the logits' columns are not all tokens."""


@jit()
def columns_of(tokens, column_of, sizes, has_head: tl.constexpr):
    """The columns of tokens."""
    if has_head:
        last = sizes.head_end - 1
        columns = tl.load(column_of + tl.where(tokens >= 0, tl.minimum(tokens, last), last))
    else:
        columns = tl.where((tokens >= 0) & (tokens < sizes.columns), tokens, sizes.columns)
    return columns.to(tl.int32)


@jit()
def penalised(logits, seen, rules, sequence, sizes):
    """Logits after the penalties."""
    repetition = tl.zeros_like(logits) + tl.load(rules.penalties + sequence)
    frequency = tl.load(rules.penalties + sizes.sequences + sequence)
    presence = tl.load(rules.penalties + 2 * sizes.sequences + sequence)
    # IEEE rounding: a plain division may differ in the last bit.
    repeated = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
    logits = tl.where(seen > 0, repeated, logits)
    count = (seen >> 1).to(tl.float32)
    return logits - frequency * count - presence * tl.minimum(count, 1.0)


@jit()
def is_among(columns, others):
    return tl.max((columns[:, None] == others[None, :]).to(tl.int32), 1) != 0


@jit()
def list_columns(lists, number: tl.constexpr, bias, first, row, sequence, logits, rules, found, sizes):
    """Writes the edited logits of the columns of one list to the row's exceptions, from place `first` on.

    `lists`: columns of the path, with a bias, forbidden by bad words, and of end tokens that are too early.
    """
    columns = lists[number]
    count: tl.constexpr = columns.shape[0]
    place = tl.arange(0, count)
    # No two threads may write one column.
    is_again = (columns[:, None] == columns[None, :]) & (place[None, :] < place[:, None])
    is_again = tl.max(is_again.to(tl.int32), 1) != 0
    for other in tl.static_range(number):
        is_again = is_again | is_among(columns, lists[other])
    is_column = columns < sizes.columns
    values = tl.load(logits + row * sizes.row_stride + columns, mask=is_column, other=0.0)
    values += tl.sum(tl.where(columns[:, None] == lists[1][None, :], bias[None, :], 0.0), 1)
    seen = tl.load(rules.seen + sequence * (sizes.columns + 1) + columns)
    seen += 2 * tl.sum((columns[:, None] == lists[0][None, :]).to(tl.int32), 1)
    values = penalised(values, seen, rules, sequence, sizes)
    is_forbidden = is_among(columns, lists[2]) | is_among(columns, lists[3])
    spots = row * sizes.exceptions + first + place
    tl.store(found.columns + spots, tl.where(is_again, sizes.columns, columns))
    tl.store(found.logits + spots, tl.where(is_forbidden, float("-inf"), values))


@jit()
def list_exceptions(
    logits,
    rules,
    rows,
    found,
    column_of,
    sizes,
    depth: tl.constexpr,
    num_biases: tl.constexpr,
    num_words: tl.constexpr,
    longest: tl.constexpr,
    num_ends: tl.constexpr,
    window: tl.constexpr,
    depths: tl.constexpr,
    biases: tl.constexpr,
    ends: tl.constexpr,
    has_head: tl.constexpr,
):
    """One program per row. `num_words` and `longest` are powers of two; `depths`, `biases` and `ends` are at
    least the sizes of the path and of these lists."""
    row = tl.program_id(0).to(tl.int64)
    sequence = tl.load(rows.sequence + row)
    if (tl.load(rows.attaches + row) != 0) & (tl.load(rules.is_edited + sequence) != 0):
        position, length = tl.load(rows.position + row), tl.load(rules.length + sequence)
        place = tl.arange(0, depths)
        own = rows.paths + row * (depth + 1)
        tokens = tl.load(own + place, mask=place < depth, other=-1)
        path = columns_of(tokens, column_of, sizes, has_head)

        number = tl.arange(0, biases)
        is_bias, spot = number < num_biases, sequence * num_biases + number
        bias = tl.load(rules.biases + spot, mask=is_bias, other=0.0)
        bias_columns = tl.load(rules.bias_columns + spot, mask=is_bias, other=sizes.columns).to(tl.int32)

        # The last tokens up to and including the row's own, latest first.
        back, word = tl.arange(0, longest), tl.arange(0, num_words)
        drafted = position - back - length
        is_drafted, is_written = drafted >= 0, (drafted < 0) & (position >= back)
        tail = tl.load(own + drafted, mask=is_drafted & (drafted < depth), other=-1)
        text = rules.recent + sequence * (window + 1) + (position - back) % window
        # −2: before the text's first token, which no bad word has.
        tail = tl.where(is_drafted, tail, tl.load(text, mask=is_written, other=-2))
        starts = tl.load(rules.starts + (sequence * num_words + word[:, None]) * longest + back[None, :])
        is_ending = tl.min(((starts == tail[None, :]) | (starts == -1)).to(tl.int32), 1) != 0
        lasts = tl.load(rules.lasts + sequence * num_words + word).to(tl.int32)
        words = tl.where(is_ending, lasts, sizes.columns)

        number = tl.arange(0, ends)
        tokens = tl.load(rules.ends + sequence * num_ends + number, mask=number < num_ends, other=-1)
        is_early = position + 1 < tl.load(rules.min_length + sequence)
        early = columns_of(tokens, column_of, sizes, has_head)
        early = tl.where(is_early, early, sizes.columns)

        lists = (path, bias_columns, words, early)
        list_columns(lists, 0, bias, 0, row, sequence, logits, rules, found, sizes)
        list_columns(lists, 1, bias, depths, row, sequence, logits, rules, found, sizes)
        first = depths + biases
        list_columns(lists, 2, bias, first, row, sequence, logits, rules, found, sizes)
        list_columns(lists, 3, bias, first + num_words, row, sequence, logits, rules, found, sizes)


@jit()
def edit_block(logits, rules, rows, found, sizes, block: tl.constexpr, wide: tl.constexpr):
    """One program per row and block. `wide`: a power of two, at least the number of exceptions."""
    row = tl.program_id(0).to(tl.int64)
    sequence = tl.load(rows.sequence + row)
    if (tl.load(rows.attaches + row) != 0) & (tl.load(rules.is_edited + sequence) != 0):
        first, mine = tl.program_id(1) * block, logits + row * sizes.row_stride
        columns = first + tl.arange(0, block)
        is_column = columns < sizes.columns
        seen = tl.load(rules.seen + sequence * (sizes.columns + 1) + columns, mask=is_column, other=0)
        values = tl.load(mine + columns, mask=is_column, other=0.0)
        tl.store(mine + columns, penalised(values, seen, rules, sequence, sizes), mask=is_column)
        place = tl.arange(0, wide)
        spots = row * sizes.exceptions + place
        others = tl.load(found.columns + spots, mask=place < sizes.exceptions, other=-1)
        is_mine = (others >= first) & (others < tl.minimum(first + block, sizes.columns))
        values = tl.load(found.logits + spots, mask=is_mine, other=0.0)
        # The exceptions must be written after the rest of the block.
        tl.debug_barrier()
        tl.store(mine + others, values, mask=is_mine)


def edit_logits(logits: Tensor, rules: EditRules, rows: EditRows, column_of: Tensor | None) -> None:
    """Two launches: edits the logits of rows that attach, in place. `column_of`: columns of tokens."""
    num_rows, num_columns = logits.shape
    num_sequences, num_words, longest = rules.starts.shape
    depth, num_biases, num_ends = rows.paths.shape[1] - 1, rules.biases.shape[1], rules.ends.shape[1]
    depths, biases, ends = (up_to_power(each) for each in (depth, num_biases, num_ends))
    width, device = depths + biases + num_words + ends, logits.device
    found = Exceptions(
        torch.empty(num_rows, width, dtype=torch.int32, device=device),
        torch.empty(num_rows, width, device=device),
    )
    head_end = 0 if column_of is None else len(column_of)
    sizes = EditSizes(num_columns, logits.stride(0), num_sequences, width, head_end)
    with launching_on(logits):
        list_exceptions[(num_rows,)](
            logits,
            rules,
            rows,
            found,
            rules.seen if column_of is None else column_of,
            sizes,
            depth=depth,
            num_biases=num_biases,
            num_words=num_words,
            longest=longest,
            num_ends=num_ends,
            window=rules.recent.shape[1] - 1,
            depths=depths,
            biases=biases,
            ends=ends,
            has_head=column_of is not None,
            num_warps=8,
            # As torch does: a product and a sum are rounded one after the other.
            enable_fp_fusion=False,
        )
        edit_block[(num_rows, -(-num_columns // BLOCK))](
            logits,
            rules,
            rows,
            found,
            sizes,
            block=BLOCK,
            wide=up_to_power(width),
            num_warps=4,
            enable_fp_fusion=False,
        )
