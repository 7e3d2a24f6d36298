"""The gguf package's reader with faster arrays.

The package makes two numpy views for each entry of an array: half a million for a vocabulary of 150k tokens
and its merges. And transformers reads each header twice more. Here strings of an array are slices of one
memoryview, and numbers slices of one numpy array; both the package and transformers accept these. Raises
ValueError for counts and lengths that exceed the file.
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
"""Bytes before the entries of an array: type and count."""
_patching = threading.Lock()

Parts = tuple[int, list[Any], list[int], list[Any]]
"""A field's size in bytes, its pieces, the indices of the pieces that are values, and their types."""


class GgufReader(gguf.GGUFReader):  # type: ignore[misc]
    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Parts:
        if gguf.GGUFValueType(raw_type) != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
            usual: Parts = super()._get_field_parts(orig_offs, raw_type)
            return usual
        raw_item, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        item, start = gguf.GGUFValueType(raw_item[0]), orig_offs + _HEAD
        if item == gguf.GGUFValueType.ARRAY:
            raise ValueError("arrays of arrays are not supported: no model has one")
        entries, size = (
            self._strings(start, int(count[0]))
            if item == gguf.GGUFValueType.STRING
            else self._numbers(start, int(count[0]), self.gguf_scalar_to_np[item])
        )
        indices = list(range(2, 2 + len(entries)))
        types = [gguf.GGUFValueType.ARRAY, item] if entries else [gguf.GGUFValueType.ARRAY]
        return _HEAD + size, [raw_item, count, *entries], indices, types

    def _strings(self, start: int, count: int) -> tuple[list[memoryview], int]:
        file = memoryview(self.data)
        self._require(start, count * _COUNT.size)
        strings, offset = list[memoryview](), start
        for _ in range(count):
            self._require(offset, _COUNT.size)
            (length,) = _COUNT.unpack_from(file, offset)
            offset += _COUNT.size
            self._require(offset, length)
            strings.append(file[offset : offset + length])
            offset += length
        return strings, offset - start

    def _numbers(self, start: int, count: int, kind: Any) -> tuple[list[Any], int]:
        size = count * np.dtype(kind).itemsize
        self._require(start, size)
        numbers = np.asarray(self.data[start : start + size]).view(kind)
        return [numbers[index : index + 1] for index in range(count)], size

    def _require(self, start: int, size: int) -> None:
        if start + size > len(self.data):
            raise ValueError(f"{size} bytes at {start} are beyond the end of the file")


@contextmanager
def read_once(reader: GgufReader) -> Iterator[None]:
    """Within it, transformers gets this reader wherever it would make its own, which it does twice."""

    def same_reader(*_: Any, **__: Any) -> GgufReader:
        return reader

    with _patching:
        usual = gguf.GGUFReader
        gguf.GGUFReader = same_reader
        try:
            yield
        finally:
            gguf.GGUFReader = usual
