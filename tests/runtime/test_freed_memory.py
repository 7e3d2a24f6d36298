"""Freed memory goes back to the system."""

import ctypes
import platform
import re
from pathlib import Path

import pytest

from ssd.runtime.freed_memory import return_freed_memory

_SIZE, _COUNT = 64 << 10, 1500


def resident_bytes() -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_freed_pieces_are_returned() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    pieces = [library.malloc(_SIZE) for _ in range(_COUNT)]
    for each in pieces:
        ctypes.memset(each, 1, _SIZE)
    # The last piece keeps those below it from being returned at once.
    for each in pieces[:-1]:
        library.free(each)
    before = resident_bytes()
    return_freed_memory()
    assert before - resident_bytes() > _SIZE * _COUNT // 2
    library.free(pieces[-1])
