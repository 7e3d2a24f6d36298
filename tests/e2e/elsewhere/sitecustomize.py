"""First on PYTHONPATH, this makes a Python process, and those it starts, see a system unlike Linux.

No affinity, no /proc, no /sys: as on macOS, as far as that can be had here. The interpreter imports it
by itself.
"""

import errno
import os
import sys

_HIDDEN = ("/proc", "/sys")


def _is_hidden(path: object) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    text = os.fsdecode(path)
    return any(text == place or text.startswith(f"{place}/") for place in _HIDDEN)


def _hide(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and _is_hidden(arguments[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


_stat = os.stat


def _stat_what_is_there(path, *arguments, **named):  # type: ignore[no-untyped-def]
    if _is_hidden(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return _stat(path, *arguments, **named)


for _name in ("sched_getaffinity", "sched_setaffinity"):
    if hasattr(os, _name):
        delattr(os, _name)
os.stat = _stat_what_is_there
sys.addaudithook(_hide)
