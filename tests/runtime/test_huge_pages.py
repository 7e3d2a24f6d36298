"""Which mappings are asked for, and that asking works here or does nothing."""

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


def test_asking_is_harmless() -> None:
    request_huge_pages()
