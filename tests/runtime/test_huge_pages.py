"""Which mappings are asked for, and that asking works here or does nothing."""

import ctypes
import gc
import mmap
import re
from pathlib import Path

import pytest

from ssd.runtime.huge_pages import filled_mappings, request_huge_pages

SMAPS = """\
7f0000000000-7f0000800000 rw-p 00000000 00:00 0 
Size:               8192 kB
Rss:                8192 kB
VmFlags: rd wr
7f0100000000-7f0180000000 rw-p 00000000 00:00 0 
Size:            2097152 kB
Rss:                   4 kB
7f0200100000-7f0200700000 rw-p 00000000 00:00 0 
Rss:                6144 kB
7f0300000000-7f0300800000 rw-p 00000000 08:01 123                        /some/file
Rss:                8192 kB
7f0400000000-7f0400800000 r--p 00000000 00:00 0 
Rss:                8192 kB
55d000000000-55d000800000 rw-p 00000000 00:00 0                          [heap]
Rss:                8192 kB
"""  # noqa: W291


def test_only_filled_anonymous_mappings_are_taken_in_whole_pages() -> None:
    assert filled_mappings(SMAPS) == [
        (0x7F0000000000, 0x7F0000800000),
        (0x7F0200200000, 0x7F0200600000),
    ]


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this kernel has no huge pages"
)
def test_what_is_filled_is_asked_for_and_keeps_its_content() -> None:
    """The kernel notes the request for a mapping as the flag `hg`."""
    size = 8 << 20
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as filled:
        filled.write(b"weights!" * (size // 8))
        start = ctypes.addressof(ctypes.c_char.from_buffer(filled))
        place = (start + (2 << 20) - 1) // (2 << 20) * (2 << 20)
        assert "hg" not in flags_at(place)
        request_huge_pages()
        assert "hg" in flags_at(place)
        assert filled[:] == b"weights!" * (size // 8)
        gc.collect()


def flags_at(address: int) -> list[str]:
    """Of the mapping that holds an address."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_there = int(found[1], 16) <= address < int(found[2], 16)
        elif is_there and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"no mapping holds {address:#x}")
