"""Checks the counts in a GGUF header against the size of the file, before the header is parsed.

Counts and lengths in a header have 64 bits, and the gguf package's parser trusts them: with a count of 2^60
it would never return. Also reads the vocabulary. Knows the layout of headers only.
"""

import struct
from pathlib import Path
from typing import BinaryIO

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by type."""
_STRING, _ARRAY = 8, 9
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8
"""Minimum bytes of a tensor's entry: name, dimension, type and offset."""
_LEAST_PAIR = 8 + 4 + 1
_ARCHITECTURE, _TOKENS = "general.architecture", "tokenizer.ggml.tokens"


def check_counts(path: Path) -> None:
    """ValueError if the header's counts and lengths exceed the file."""
    _scan(path, wants_tokens=False)


def read_tokens(path: Path) -> list[str]:
    """The texts of the vocabulary, by token id; empty if the file has none."""
    return _scan(path, wants_tokens=True)


def _scan(path: Path, *, wants_tokens: bool) -> list[str]:
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            return _check(_HeaderScanner(file, size), wants_tokens=wants_tokens)
        except (struct.error, UnicodeDecodeError, KeyError, _DoesNotFitError) as error:
            raise ValueError(f"{path} is not a GGUF file, or a damaged one: download it again") from error


class _DoesNotFitError(Exception):
    pass


class _HeaderScanner:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def number(self, form: str) -> int:
        (number,) = struct.unpack(f"<{form}", self._file.read(struct.calcsize(form)))
        return int(number)

    def require(self, count: int, num_bytes: int) -> None:
        """Raises unless the rest of the file can hold `count` items of `num_bytes`."""
        if count * num_bytes > self._size - self._file.tell():
            raise _DoesNotFitError(f"{count} of {num_bytes} bytes")

    def text(self) -> str:
        length = self.number("Q")
        self.require(length, 1)
        return self._file.read(length).decode(errors="replace")

    def skip(self, num_bytes: int) -> None:
        self.require(num_bytes, 1)
        self._file.seek(num_bytes, 1)


def _check(header: _HeaderScanner, *, wants_tokens: bool) -> list[str]:
    tokens: list[str] = []
    if header.number("I") != int.from_bytes(b"GGUF", "little") or header.number("I") not in (2, 3):
        raise _DoesNotFitError("not a GGUF file of version 2 or 3")
    num_tensors, num_pairs = header.number("Q"), header.number("Q")
    header.require(num_tensors, _LEAST_TENSOR)
    header.require(num_pairs, _LEAST_PAIR)
    for _ in range(num_pairs):
        name, kind = header.text(), header.number("I")
        if name == _ARCHITECTURE and kind != _STRING:
            raise _DoesNotFitError(f"{_ARCHITECTURE} is not a string")
        if wants_tokens and name == _TOKENS and kind == _ARRAY:
            tokens = _texts(header)
        else:
            _skip_field(header, kind)
    return tokens


def _texts(header: _HeaderScanner) -> list[str]:
    if header.number("I") != _STRING:
        raise _DoesNotFitError(f"{_TOKENS} are not strings")
    count = header.number("Q")
    header.require(count, 8)
    return [header.text() for _ in range(count)]


def _skip_field(header: _HeaderScanner, kind: int) -> None:
    if kind != _ARRAY:
        header.skip(header.number("Q") if kind == _STRING else _SIZES[kind])
        return
    inner, count = header.number("I"), header.number("Q")
    if inner == _STRING:
        header.require(count, 8)
        for _ in range(count):
            header.skip(header.number("Q"))
    else:  # An array of arrays raises KeyError: no model has one, and they could be nested without end.
        header.require(count, _SIZES[inner])
        header.skip(count * _SIZES[inner])
