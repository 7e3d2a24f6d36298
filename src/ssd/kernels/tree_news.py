"""Writes decided tokens and new entries of block tables where texts are kept, before trees learn of them.

`NewsWriter` of `draft/tree/device_news.py` is the reference. Knows tables. Does not know trees.
"""

from typing import NamedTuple

from torch import Tensor

from ssd.kernels.edits import EditSizes, columns_of
from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.tree_outcomes import OutcomeTokens
from ssd.kernels.trees import up_to_power


class BlockNews(NamedTuple):
    """New entries of each sequence's block table."""

    first: Tensor
    number: Tensor
    blocks: Tensor


class TextMemory(NamedTuple):
    """Where texts are kept [S, …]."""

    length: Tensor
    blocks: Tensor
    recent: Tensor  # the token of position p is at p mod window; the last column is scratch
    is_edited: Tensor
    seen: Tensor  # twice the number of times that a token was generated, + 1 if in the prompt


@jit()
def write_news(
    memory,
    outcomes,
    news,
    column_of,
    sizes,
    num_blocks,
    most: tl.constexpr,
    most_new: tl.constexpr,
    window: tl.constexpr,
    places: tl.constexpr,
    new_places: tl.constexpr,
    has_head: tl.constexpr,
):
    """One program per sequence. `places` and `new_places`: powers of two, at least `most` and `most_new`."""
    here = tl.program_id(0).to(tl.int64)
    spot, number = tl.arange(0, new_places), tl.load(news.number + here)
    is_new = (spot < number) & (spot < most_new)
    blocks = tl.load(news.blocks + here * most_new + spot, mask=is_new, other=0)
    tl.store(memory.blocks + here * num_blocks + tl.load(news.first + here) + spot, blocks, mask=is_new)
    count = tl.load(outcomes.number + here)
    if count > 0:
        place = tl.arange(0, places)
        is_token = place < count
        tokens = tl.load(outcomes.tokens + here * most + place, mask=is_token, other=-1)
        at = (tl.load(memory.length + here) + place) % window
        tl.store(memory.recent + here * (window + 1) + at, tokens, mask=is_token)
        if tl.load(memory.is_edited + here) != 0:
            columns = columns_of(tokens, column_of, sizes, has_head)
            # A token may be there more than once.
            seen = memory.seen + here * (sizes.columns + 1) + columns
            tl.atomic_add(seen, tl.zeros([places], tl.int32) + 2, mask=is_token)


def write_text_news(
    memory: TextMemory, outcomes: OutcomeTokens, news: BlockNews, column_of: Tensor | None
) -> None:
    """One launch. `column_of`: columns of tokens (edits.py)."""
    num_sequences, num_columns = memory.seen.shape[0], memory.seen.shape[1] - 1
    most, most_new = outcomes.tokens.shape[1], news.blocks.shape[1]
    head_end = 0 if column_of is None else len(column_of)
    with launching_on(memory.seen):
        write_news[(num_sequences,)](
            memory,
            outcomes,
            news,
            memory.seen if column_of is None else column_of,
            EditSizes(num_columns, 0, num_sequences, 0, head_end),
            memory.blocks.shape[1],
            most=most,
            most_new=most_new,
            window=memory.recent.shape[1] - 1,
            places=max(2, up_to_power(most)),
            new_places=max(2, up_to_power(most_new)),
            has_head=column_of is not None,
            num_warps=1,
        )
