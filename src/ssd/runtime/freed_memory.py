"""Returns freed memory to the system. glibc keeps what threads free for their next allocations.

Loading unpacks weights on several threads, and their pieces would stay with the process. Does nothing where
the C library has no malloc_trim.
"""

import contextlib
import ctypes


def return_freed_memory() -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
