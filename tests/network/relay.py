"""The wires between hosts: a program that carries packets, late, out of order, or not at all.

    python -m tests.network.relay 10.77.0.1 10.77.0.2

It makes a host for each address (namespaces.py) and prints, as JSON, the files of their namespaces. Then it
carries IPv4 packets between them. Each line of its standard input sets one direction: {"source": …,
"destination": …, "way": {…}}, and is answered with an empty line once it holds. It ends with its standard
input. Knows packets by their addresses only.
"""

import heapq
import itertools
import json
import os
import random
import select
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tests.network.namespaces import make_namespace, wake_on_time

_PACKET = 65536
_PACKETS_AT_ONCE = 64
_QUEUED_PACKETS = 10_000
"""What comes beyond is lost, as it is in a switch."""


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of packets in one direction. Times in seconds, shares from 0 to 1."""

    delay: float = 0.0
    jitter: float = 0.0
    """At most so much is added. Packets stay in their order, as behind a queue that others fill."""
    loss: float = 0.0
    reorder: float = 0.0
    """The share that is held back so long that later ones overtake it."""
    held: float = 0.002
    """How long that is."""
    is_cut: bool = False


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    destination: str
    way: Way


class _Parcel(NamedTuple):
    due: float
    number: int
    device: int
    packet: bytes


@dataclass(slots=True)
class _Traffic:
    """One direction, as it is now."""

    way: Way
    last_due: float = 0.0


class Relay:
    def __init__(self, devices: dict[bytes, int]) -> None:
        """`devices`: of each address, packed as in a packet."""
        self.devices = devices
        self._chance = random.Random(0)
        self._traffic: dict[tuple[bytes, bytes], _Traffic] = {}
        self._waiting: list[_Parcel] = []
        self._numbers = itertools.count()

    def set(self, source: bytes, destination: bytes, way: Way) -> None:
        self._traffic[source, destination] = _Traffic(way)

    def take(self, packet: bytes, now: float) -> None:
        if packet[0] >> 4 != 4:
            return  # IPv6 looks for neighbours that are not there.
        source, destination = packet[12:16], packet[16:20]
        device = self.devices.get(destination)
        traffic = self._traffic.setdefault((source, destination), _Traffic(Way()))
        way = traffic.way
        if device is None or way.is_cut or (way.loss and self._chance.random() < way.loss):
            return
        if len(self._waiting) < _QUEUED_PACKETS:
            heapq.heappush(
                self._waiting, _Parcel(self._due(traffic, now), next(self._numbers), device, packet)
            )

    def deliver(self, now: float) -> float | None:
        """Hands over what is due; the seconds until the next is."""
        while self._waiting and self._waiting[0].due <= now:
            parcel = heapq.heappop(self._waiting)
            os.write(parcel.device, parcel.packet)
        return self._waiting[0].due - now if self._waiting else None

    def _due(self, traffic: _Traffic, now: float) -> float:
        way = traffic.way
        due = now + way.delay + (self._chance.uniform(0, way.jitter) if way.jitter else 0.0)
        if way.reorder and self._chance.random() < way.reorder:
            return due + way.held
        traffic.last_due = max(traffic.last_due, due)
        return traffic.last_due


def carry(relay: Relay, addresses: dict[str, bytes]) -> None:
    """Until standard input ends."""
    devices, commands = list(relay.devices.values()), sys.stdin.fileno()
    while True:
        ready, _, _ = select.select([*devices, commands], [], [], relay.deliver(time.monotonic()))
        now = time.monotonic()
        for device in devices:
            if device in ready:
                _take_all(relay, device, now)
        if commands in ready and not _obey(relay, addresses):
            return


def _take_all(relay: Relay, device: int, now: float) -> None:
    for _ in range(_PACKETS_AT_ONCE):
        try:
            relay.take(os.read(device, _PACKET), now)
        except BlockingIOError:
            return


def _obey(relay: Relay, addresses: dict[str, bytes]) -> bool:
    line = sys.stdin.buffer.readline()
    if not line:
        return False
    setting = msgspec.json.decode(line, type=Setting)
    relay.set(addresses[setting.source], addresses[setting.destination], setting.way)
    _answer("")
    return True


def _answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    wake_on_time()
    addresses = {each: bytes(map(int, each.split("."))) for each in sys.argv[1:]}
    hosts = {address: make_namespace(address) for address in addresses}
    _answer(json.dumps({address: each.network for address, each in hosts.items()}))
    carry(Relay({addresses[address]: each.device for address, each in hosts.items()}), addresses)


if __name__ == "__main__":
    main()
