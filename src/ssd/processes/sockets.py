"""Ports, and temporary folders for the sockets of our processes, readable by this user only.

Knows files and addresses. Does not know messages or processes.
"""

import contextlib
import shutil
import socket
import tempfile
from pathlib import Path

_UNIX = "ipc://"


def open_port(host: str, port: int) -> socket.socket:
    """A socket that listens there; ValueError with a remedy if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        # Some messages of the system repeat the address in parentheses.
        reason = str(error.strerror).partition(" (")[0]
        raise ValueError(f"cannot listen on {host}:{port} ({reason}): choose another host or port") from error


def private_folder() -> Path:
    """A new folder with mode 0700."""
    return Path(tempfile.mkdtemp(prefix="ssd-"))


def remove_folder(folder: Path) -> None:
    """Removes a folder and its contents. The process and its parent may both call this."""
    shutil.rmtree(folder, ignore_errors=True)


def address_in(folder: Path, name: str) -> str:
    return f"{_UNIX}{folder}/{name}"


def private_address() -> str:
    """The address of a draft's socket in a new private folder."""
    return address_in(private_folder(), "draft.sock")


def remove_socket(address: str) -> None:
    """Removes the file of a Unix socket, and its folder if that is empty afterwards."""
    if address.startswith(_UNIX):
        path = Path(address.removeprefix(_UNIX))
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
