"""Whether two models mean the same by their tokens.

Models of one family often pad their embeddings differently, and one may name special tokens that
are padding to the other: neither is a conflict.
"""

from typing import Any

from ssd.models.checkpoint import Checkpoint


def common_vocabulary(target: Checkpoint, draft: Checkpoint) -> int:
    """Tokens both models know; ValueError if they mean different things by one of them.

    What lies beyond the smaller table is never guessed.
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
