"""The HELLO of protocol version 3 (ssd 0.2), so that either side can say that the other must be updated.

There a message was an array whose first entry was its tag. Nothing else of that version is spoken.
"""

import msgspec

_MAX_BYTES = 8192
"""No HELLO is longer: a larger frame is not decoded again to find out."""


class EarlierHello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="hello"):
    version: int
    tokenizer: str
    vocab_size: int
    name: str
    instance: str
    max_model_len: int = 0
    refusal: str = ""


_decoder = msgspec.msgpack.Decoder(list[EarlierHello])


def is_hello_of_version_3(frame: bytes) -> bool:
    """Whether a frame consists of it."""
    if len(frame) > _MAX_BYTES:
        return False
    try:
        return bool(_decoder.decode(frame))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def refusal_to_version_3(name: str, reason: str) -> bytes:
    """The frame in which a draft tells an engine of version 3 why it refuses it."""
    hello = EarlierHello(version=3, tokenizer="", vocab_size=0, name=name, instance="", refusal=reason)
    return msgspec.msgpack.encode([hello])
