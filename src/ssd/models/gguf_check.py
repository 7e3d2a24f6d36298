"""Whether a GGUF header's counts fit its file, before anything is read by them.

A header says how many entries it has, and how long each is, in 64 bits. The parser that reads it believes
that: one that claims 2^60 would keep it busy for ever. Knows the layout of headers only.
"""

import struct
from pathlib import Path
from typing import BinaryIO

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by its type."""
_STRING, _ARRAY = 8, 9
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8
"""Bytes of an entry: a name, a dimension, a type and an offset."""
_LEAST_PAIR = 8 + 4 + 1
_NAMED = "general.architecture"


def check_counts(path: Path) -> None:
    """ValueError unless the header lies in the file as it says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            _check(_HeaderScanner(file, size))
        except (struct.error, UnicodeDecodeError, KeyError, _DoesNotFitError) as error:
            raise ValueError(f"{path} is not a GGUF file, or a damaged one: download it again") from error


class _DoesNotFitError(Exception):
    pass


class _HeaderScanner:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def number(self, form: str) -> int:
        (found,) = struct.unpack(f"<{form}", self._file.read(struct.calcsize(form)))
        return int(found)

    def require(self, count: int, num_bytes: int) -> None:
        """So many things of so many bytes must follow."""
        if count * num_bytes > self._size - self._file.tell():
            raise _DoesNotFitError(f"{count} of {num_bytes} bytes")

    def text(self) -> str:
        length = self.number("Q")
        self.require(length, 1)
        return self._file.read(length).decode(errors="replace")

    def pass_by(self, num_bytes: int) -> None:
        self.require(num_bytes, 1)
        self._file.seek(num_bytes, 1)


def _check(header: _HeaderScanner) -> None:
    if header.number("I") != int.from_bytes(b"GGUF", "little") or header.number("I") not in (2, 3):
        raise _DoesNotFitError("no GGUF of version 2 or 3")
    num_tensors, num_pairs = header.number("Q"), header.number("Q")
    header.require(num_tensors, _LEAST_TENSOR)
    header.require(num_pairs, _LEAST_PAIR)
    for _ in range(num_pairs):
        name, kind = header.text(), header.number("I")
        if name == _NAMED and kind != _STRING:
            raise _DoesNotFitError(f"{_NAMED} is no text")
        _pass_by(header, kind)


def _pass_by(header: _HeaderScanner, kind: int) -> None:
    if kind != _ARRAY:
        _pass_by_value(header, kind)
        return
    inner, count = header.number("I"), header.number("Q")
    if inner == _STRING:
        header.require(count, 8)
        for _ in range(count):
            header.pass_by(header.number("Q"))
    else:  # An array of arrays is a KeyError: no model has one, and each may hold another.
        header.require(count, _SIZES[inner])
        header.pass_by(count * _SIZES[inner])


def _pass_by_value(header: _HeaderScanner, kind: int) -> None:
    header.pass_by(header.number("Q") if kind == _STRING else _SIZES[kind])
