"""The gguf package's reader with one difference: arrays are read in one go.

The package makes two numpy views of the mapped file for each entry of an array, half a million of them for a
vocabulary of 150k tokens and its merges, and transformers reads each header twice more. Here a string of an
array is a slice of one memoryview, and a number a slice of one numpy array, which the package and
transformers take as well. Counts and lengths that do not fit into the file are refused.
"""

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gguf
import numpy as np

_COUNT = struct.Struct("<Q")
_HEAD = 12
"""Bytes before the entries of an array: their type and their number."""
_patching = threading.Lock()

Parts = tuple[int, list[Any], list[int], list[Any]]
"""Of a field: its bytes, the pieces it is made of, which of them are its values, and their types."""


class GgufReader(gguf.GGUFReader):  # type: ignore[misc]
    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Parts:
        if gguf.GGUFValueType(raw_type) != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
            usual: Parts = super()._get_field_parts(orig_offs, raw_type)
            return usual
        raw_item, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        item, start = gguf.GGUFValueType(raw_item[0]), orig_offs + _HEAD
        if item == gguf.GGUFValueType.ARRAY:
            raise ValueError("an array of arrays: no model has one")
        entries, size = (
            self._strings(start, int(count[0]))
            if item == gguf.GGUFValueType.STRING
            else self._numbers(start, int(count[0]), self.gguf_scalar_to_np[item])
        )
        places = list(range(2, 2 + len(entries)))
        types = [gguf.GGUFValueType.ARRAY, item] if entries else [gguf.GGUFValueType.ARRAY]
        return _HEAD + size, [raw_item, count, *entries], places, types

    def _strings(self, start: int, count: int) -> tuple[list[memoryview], int]:
        file = memoryview(self.data)
        self._require(start, count * _COUNT.size)
        found, place = list[memoryview](), start
        for _ in range(count):
            self._require(place, _COUNT.size)
            (length,) = _COUNT.unpack_from(file, place)
            place += _COUNT.size
            self._require(place, length)
            found.append(file[place : place + length])
            place += length
        return found, place - start

    def _numbers(self, start: int, count: int, kind: Any) -> tuple[list[Any], int]:
        size = count * np.dtype(kind).itemsize
        self._require(start, size)
        numbers = np.asarray(self.data[start : start + size]).view(kind)
        return [numbers[place : place + 1] for place in range(count)], size

    def _require(self, start: int, size: int) -> None:
        if start + size > len(self.data):
            raise ValueError(f"{size} bytes at {start} are beyond the end of the file")


@contextmanager
def read_once(reader: GgufReader) -> Iterator[None]:
    """Meanwhile transformers, which makes a reader of its own twice, gets this one from the package."""

    def again(*_: Any, **__: Any) -> GgufReader:
        return reader

    with _patching:
        usual = gguf.GGUFReader
        gguf.GGUFReader = again
        try:
            yield
        finally:
            gguf.GGUFReader = usual
