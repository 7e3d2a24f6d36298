"""The wires between hosts: a program that carries packets, late or not at all.

    python -m tests.network.relay 10.77.0.1 10.77.0.2

It makes a host for each address (a network namespace with one TUN device) and prints, as JSON, the files of
their namespaces. Then it carries IPv4 packets between them. Each line of its standard input sets one
direction: {"source": …, "destination": …, "way": {…}}, and is answered with an empty line once it holds. It
ends with its standard input, and nothing is left behind. Knows packets by their addresses only.
"""

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import time

import msgspec

_PACKET, _PACKETS_AT_ONCE = 65536, 64
_CLONE_NEWNET, _TUNSETIFF, _IFF_TUN_NO_PI = 0x40000000, 0x400454CA, 0x1001
_SIOCSIFADDR, _SIOCSIFFLAGS, _SIOCSIFNETMASK, _UP_AND_RUNNING = 0x8916, 0x8914, 0x891C, 0x41

_libc = ctypes.CDLL(None, use_errno=True)


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How packets travel in one direction. `delay` in seconds; `loss` is a share from 0 to 1."""

    delay: float = 0.0
    loss: float = 0.0
    is_cut: bool = False


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    destination: str
    way: Way


class Relay:
    def __init__(self, devices: dict[bytes, int]) -> None:
        """`devices`: the open TUN device by its host's address, packed as in a packet."""
        self.devices = devices
        self.ways: dict[tuple[bytes, bytes], Way] = {}
        self._chance = random.Random(0)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()

    def take(self, packet: bytes, now: float) -> None:
        source, destination = packet[12:16], packet[16:20]
        way, device = self.ways.get((source, destination), Way()), self.devices.get(destination)
        is_ipv4 = packet[0] >> 4 == 4
        if is_ipv4 and device is not None and not way.is_cut and self._chance.random() >= way.loss:
            heapq.heappush(self._waiting, (now + way.delay, next(self._numbers), device, packet))

    def deliver(self, now: float) -> float | None:
        """Hands over what is due; the seconds until the next is."""
        while self._waiting and self._waiting[0][0] <= now:
            _due, _number, device, packet = heapq.heappop(self._waiting)
            os.write(device, packet)
        return self._waiting[0][0] - now if self._waiting else None


def make_host(address: str) -> tuple[int, int]:
    """A network namespace and its device, as open files. The calling thread is in it afterwards."""
    if _libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace can be made")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"tun", _IFF_TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for command, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
            number = socket.inet_aton(value)
            fcntl.ioctl(asked, command, struct.pack("16sHH4s16x", b"tun", socket.AF_INET, 0, number))
        for name in (b"tun", b"lo"):
            fcntl.ioctl(asked, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _UP_AND_RUNNING))
    return os.open("/proc/self/ns/net", os.O_RDONLY), device


def carry(relay: Relay, addresses: dict[str, bytes]) -> None:
    """Until standard input ends."""
    devices, commands = list(relay.devices.values()), sys.stdin.fileno()
    while True:
        ready, _, _ = select.select([*devices, commands], [], [], relay.deliver(time.monotonic()))
        now = time.monotonic()
        for device in set(devices) & set(ready):
            try:
                for _ in range(_PACKETS_AT_ONCE):
                    relay.take(os.read(device, _PACKET), now)
            except BlockingIOError:
                continue
        if commands in ready:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            setting = msgspec.json.decode(line, type=Setting)
            relay.ways[addresses[setting.source], addresses[setting.destination]] = setting.way
            _answer("")


def _answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    addresses = {each: socket.inet_aton(each) for each in sys.argv[1:]}
    hosts = {address: make_host(address) for address in addresses}
    _answer(json.dumps({address: namespace for address, (namespace, _device) in hosts.items()}))
    carry(Relay({addresses[address]: device for address, (_namespace, device) in hosts.items()}), addresses)


if __name__ == "__main__":
    main()
