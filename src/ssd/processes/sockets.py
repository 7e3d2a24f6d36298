"""Where the sockets of our processes live: folders that only this user can enter, gone after their use.

Knows files. Does not know what is said over a socket, nor by whom.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

_UNIX = "ipc://"


def private_folder() -> Path:
    """A new one, with mode 0700."""
    return Path(tempfile.mkdtemp(prefix="ssd-"))


def remove_folder(folder: Path) -> None:
    """With all that is in it. The process and its parent may both do it, whoever comes first."""
    shutil.rmtree(folder, ignore_errors=True)


def address_in(folder: Path, name: str) -> str:
    return f"{_UNIX}{folder}/{name}"


def private_address() -> str:
    """For a draft of our own: a socket in a folder of its own."""
    return address_in(private_folder(), "draft.sock")


def remove_socket(address: str) -> None:
    """The file of a Unix socket that nobody needs any more, and its folder if that was all in it."""
    if address.startswith(_UNIX):
        path = Path(address.removeprefix(_UNIX))
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
