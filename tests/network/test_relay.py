"""The relay does what it says: times, losses, order and cuts are measured from inside the hosts."""

import json
import os
import socket
import statistics
import subprocess
import sys

import pytest

from tests.network.hosts import Network, environment
from tests.network.probe import Probe
from tests.network.relay import Relay, Way

HERE, THERE = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2"


def ask(network: Network, *, count: int = 200, interval: float = 0.002) -> Probe:
    flags = ["--count", str(count), "--interval", str(interval)]
    program = [sys.executable, "-m", "tests.network.probe", network.address("draft"), *flags]
    ran = subprocess.run(
        network.command("target", program), capture_output=True, check=True, env=environment()
    )
    return Probe(**json.loads(ran.stdout))


def test_a_line_without_a_delay_is_quick_and_loses_nothing(network: Network) -> None:
    found = ask(network)
    assert found.numbers == list(range(200))
    network.between("target", "draft", Way(delay=0.005))
    assert min(found.seconds) < min(ask(network, count=20).seconds)


def test_a_delay_is_kept_to_in_each_direction(network: Network) -> None:
    """A busy machine makes packets later, never earlier: what came first shows the line's own time."""
    base = min(ask(network).seconds)
    network.between("target", "draft", Way(delay=0.005))
    both = min(ask(network).seconds)
    network.one_way("target", "draft", Way())
    one = min(ask(network).seconds)
    assert both > 0.0098
    assert one > 0.0048
    assert base < one < both


def test_jitter_spreads_times_and_keeps_the_order(network: Network) -> None:
    network.one_way("target", "draft", Way(delay=0.001, jitter=0.01))
    found = ask(network)
    assert found.numbers == sorted(found.numbers)
    assert len(found.numbers) == 200
    # Each waits for the latest before it, so times lie nearer to the end of the range.
    assert statistics.median(found.seconds) > 0.006
    assert statistics.stdev(found.seconds) > 0.001


def test_packets_are_lost_in_the_share_that_was_set(network: Network) -> None:
    network.one_way("draft", "target", Way(loss=0.2))
    found = ask(network, count=1000, interval=0.0005)
    assert 0.15 < 1 - len(found.numbers) / 1000 < 0.25


def test_packets_that_are_held_back_are_overtaken(network: Network) -> None:
    network.one_way("target", "draft", Way(reorder=0.1, held=0.02))
    found = ask(network)
    assert sorted(found.numbers) == list(range(200))
    overtaken = sum(later < earlier for earlier, later in zip(found.numbers, found.numbers[1:], strict=False))
    assert overtaken > 5


def test_a_cut_lets_nothing_through_and_ends(network: Network) -> None:
    network.one_way("draft", "target", Way(is_cut=True))
    assert ask(network, count=20).numbers == []
    network.mend()
    assert len(ask(network, count=20).numbers) == 20


def test_other_lines_are_not_concerned(network: Network) -> None:
    network.between("target", "other", Way(is_cut=True))
    assert len(ask(network, count=20).numbers) == 20


def packet(number: int) -> bytes:
    return bytes((0x45, number)) + bytes(10) + HERE + THERE


def test_chance_is_the_same_in_every_run() -> None:
    """What a failing test saw can be had again."""
    kept = []
    for _ in range(2):
        relay = Relay({THERE: -1})
        relay.set(HERE, THERE, Way(delay=1.0, loss=0.5))
        for number in range(100):
            relay.take(packet(number), 0.0)
        kept.append([parcel.packet[1] for parcel in relay._waiting])
    assert kept[0] == kept[1]
    assert 30 < len(kept[0]) < 70


def test_a_thread_can_be_on_a_host_for_a_while(network: Network) -> None:
    home = os.readlink("/proc/thread-self/ns/net")
    with network.inside("draft"):
        bind_to(network.address("draft"))
        with pytest.raises(OSError, match="assign"):
            bind_to(network.address("target"))
    assert os.readlink("/proc/thread-self/ns/net") == home
    with pytest.raises(OSError, match="assign"):
        bind_to(network.address("draft"))


def bind_to(address: str) -> None:
    with socket.socket() as bound:
        bound.bind((address, 0))
