"""Checks that target and draft have compatible vocabularies.

Models of one family often pad their embeddings differently, and a special token of one may be padding in the
other: neither is a conflict.
"""

from typing import Any

from ssd.models.checkpoint import Checkpoint


def common_vocabulary(target: Checkpoint, draft: Checkpoint) -> int:
    """Size of the smaller vocabulary; ValueError if a token id has different texts in the two models.

    Tokens beyond the smaller vocabulary are never drafted.
    """
    ours, theirs = (_vocabulary(each.tokenizer()) for each in (target, draft))
    vocab_size = min(target.config.vocab_size, draft.config.vocab_size)
    differing = sorted(token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token])
    if differing:
        token = differing[0]
        raise ValueError(
            f"{draft.name} cannot draft for {target.name}: their tokenizers differ (token "
            f"{token} is {theirs[token]!r} and {ours[token]!r}); use a draft of the same family"
        )
    return vocab_size


def _vocabulary(tokenizer: Any) -> dict[int, str]:
    return {token: text for text, token in tokenizer.get_vocab().items()}
