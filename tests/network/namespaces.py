"""Network namespaces and TUN devices, by system calls: a host is a namespace with one device.

Whatever the host sends is read from the device, and whatever is written to the device the host receives.
Nothing has a name and nothing is left behind: a namespace ends with the last process that is in it or holds
it. Knows Linux. Does not know what is sent.
"""

import ctypes
import fcntl
import os
import socket
import struct
from dataclasses import dataclass

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_SIOCSIFADDR, _SIOCSIFFLAGS, _SIOCSIFNETMASK = 0x8916, 0x8914, 0x891C
_IFF_UP_AND_RUNNING = 0x41
_PR_SET_TIMERSLACK = 29

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Namespace:
    """Two open files: the namespace itself, and its device."""

    network: int
    device: int


def make_namespace(address: str) -> Namespace:
    """A host of this address in a /24 of hosts like it. The calling thread is in it afterwards."""
    if _libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace can be made")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"tun", _IFF_TUN | _IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        _set_address(asked, _SIOCSIFADDR, address)
        _set_address(asked, _SIOCSIFNETMASK, "255.255.255.0")
        for name in (b"tun", b"lo"):
            fcntl.ioctl(asked, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _IFF_UP_AND_RUNNING))
    return Namespace(os.open("/proc/self/ns/net", os.O_RDONLY), device)


def enter_namespace(file: str) -> None:
    """The calling thread, and whatever it starts from now on, is in it."""
    with open(file, "rb") as opened:
        if _libc.setns(opened.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"{file} cannot be entered")


def wake_on_time() -> None:
    """From here on the calling thread wakes within a microsecond of its time, not within the usual fifty."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)


def _set_address(asked: socket.socket, command: int, address: str) -> None:
    request = struct.pack("16sHH4s16x", b"tun", socket.AF_INET, 0, socket.inet_aton(address))
    fcntl.ioctl(asked, command, request)
