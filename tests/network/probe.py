"""Pings from inside a host: a program that says what became of each.

    python -m tests.network.probe 10.77.0.2 --count 100 --interval 0.002

The other host's kernel answers, so what is measured is what lies between. Prints, as JSON, the numbers of the
answers in the order of their arrival, and the seconds that each took.
"""

import argparse
import json
import select
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass, field

_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_PATIENCE = 0.5
"""Seconds that the last answers are waited for."""


@dataclass(frozen=True, slots=True)
class Probe:
    numbers: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def probe(address: str, *, count: int, interval: float) -> Probe:
    found, sent = Probe(), list[float]()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as line:
        line.connect((address, 0))
        for number in range(count):
            sent.append(time.monotonic())
            line.send(_request(number))
            _listen(line, found, sent, until=sent[-1] + interval)
        _listen(line, found, sent, until=time.monotonic() + _PATIENCE)
    return found


def _listen(line: socket.socket, found: Probe, sent: list[float], *, until: float) -> None:
    while (left := until - time.monotonic()) > 0 and select.select([line], [], [], left)[0]:
        packet, now = line.recv(2048), time.monotonic()
        kind, _code, _checksum, _identity, number = struct.unpack("!BBHHH", packet[20:28])
        if kind == _ECHO_REPLY:
            found.numbers.append(number)
            found.seconds.append(now - sent[number])


def _request(number: int) -> bytes:
    body = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, 1, number)
    total = sum(struct.unpack("!4H", body))
    return struct.pack("!BBHHH", _ECHO_REQUEST, 0, ~(total + (total >> 16)) & 0xFFFF, 1, number)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("address")
    arguments.add_argument("--count", type=int, default=100)
    arguments.add_argument("--interval", type=float, default=0.002)
    options = arguments.parse_args()
    found = probe(options.address, count=options.count, interval=options.interval)
    json.dump(asdict(found), sys.stdout)


if __name__ == "__main__":
    main()
