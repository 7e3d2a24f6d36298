"""Chooses the tokens of a draft's restricted output head.

Knows that the tokens of trained vocabularies are roughly ordered by frequency, the most frequent first. A
token outside the head is never drafted: where the target samples it, the draft is rejected.
"""

from itertools import islice
from typing import Any

import torch
from torch import Tensor


def frequent_tokens(tokenizer: Any, vocab_size: int, count: int) -> list[int]:
    """`count` token ids in rising order: all special and added tokens, so that texts can end, and the lowest
    other ids. Tokenizers number merges in order of training, the most frequent first."""
    named = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    special = sorted(token for token in named if token < vocab_size)
    if count <= len(special):
        raise ValueError(
            f"a head of {count} tokens is too small for {len(special)} special tokens: use some thousands"
        )
    ordinary = (token for token in range(vocab_size) if token not in named)
    chosen = islice(ordinary, count - len(special))
    return sorted([*special, *chosen])


def whole_vocabulary(logits: Tensor, head_tokens: Tensor) -> Tensor:
    """Logits of all ids up to the last head token; −inf for tokens outside the head."""
    shape = (*logits.shape[:-1], int(head_tokens[-1]) + 1)
    return logits.new_full(shape, -torch.inf).index_copy_(-1, head_tokens, logits)
