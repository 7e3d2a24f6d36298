"""The first word to the other side: who speaks, and what its tokens mean.

Takes any tokenizer with `get_vocab` and `get_added_vocab`. Does not know checkpoints, models or sockets.
"""

import uuid
from hashlib import blake2b
from typing import Any

from ssd.draft.messages import PROTOCOL_VERSION, Hello


def greeting(tokenizer: Any, *, vocab_size: int, name: str, max_model_len: int) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION,
        tokenizer=tokenizer_fingerprint(tokenizer),
        vocab_size=vocab_size,
        name=name,
        instance=uuid.uuid4().hex,
        max_model_len=max_model_len,
    )


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """The same for tokenizers that differ in added tokens only: those are where families pad."""
    added = set(tokenizer.get_added_vocab().values())
    vocabulary = {token: text for text, token in tokenizer.get_vocab().items()}
    digest = blake2b(digest_size=16)
    for token in sorted(vocabulary.keys() - added):
        digest.update(f"{token}\0{vocabulary[token]}\0".encode())
    return digest.hexdigest()
