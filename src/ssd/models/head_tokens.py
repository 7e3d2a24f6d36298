"""Which tokens an output head is restricted to, for drafts.

Knows that ids of trained vocabularies fall roughly with frequency. A draft that cannot say a token costs a
rejection there, nothing else.
"""

from itertools import islice
from typing import Any

import torch
from torch import Tensor


def frequent_tokens(tokenizer: Any, vocab_size: int, count: int) -> list[int]:
    """`count` tokens in rising order: every special or added one, so that texts can end, then the lowest ids.

    Merges are numbered in the order in which training found them, the most frequent first.
    """
    named = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    special = sorted(token for token in named if token < vocab_size)
    if count <= len(special):
        raise ValueError(
            f"a head of {count} tokens has no room beside {len(special)} special ones: use some thousands"
        )
    ordinary = (token for token in range(vocab_size) if token not in named)
    chosen = islice(ordinary, count - len(special))
    return sorted([*special, *chosen])


def whole_vocabulary(logits: Tensor, head_tokens: Tensor) -> Tensor:
    """Logits over the ids up to the last head token: those the head does not have are impossible."""
    shape = (*logits.shape[:-1], int(head_tokens[-1]) + 1)
    return logits.new_full(shape, -torch.inf).index_copy_(-1, head_tokens, logits)
