"""Text and bytes of single tokens, for log-probabilities.

Knows how byte-level and sentencepiece vocabularies encode bytes. The bytes are exact; the text of a token
that is only part of a character is not.
"""

import re
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE_PIECE = "\N{LOWER ONE EIGHTH BLOCK}"


class TokenTexts:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {int(token): str(added) for token, added in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)
        self._known: dict[int, bytes] = {}

    def text(self, token: int) -> str:
        return self.raw(token).decode("utf-8", errors="replace")

    def raw(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._bytes_of(token)
        return self._known[token]

    def _bytes_of(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""  # The model's vocabulary may be padded beyond the tokenizer's.
        if self._is_byte_level and all(char in _BYTE_OF for char in piece):
            return bytes(_BYTE_OF[char] for char in piece)
        byte = _BYTE_PIECE.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte.group(1), 16)])
        return str(piece).replace(_SPACE_PIECE, " ").encode()
