"""The relay does what it says: times, losses and cuts are measured from inside the hosts."""

import json
import subprocess
import sys

from tests.network.hosts import Network, environment
from tests.network.probe import Probe
from tests.network.relay import Way

HERE, THERE = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2"


def ask(network: Network, *, count: int = 200, interval: float = 0.002) -> Probe:
    flags = ["--count", str(count), "--interval", str(interval)]
    program = [sys.executable, "-m", "tests.network.probe", network.address("draft"), *flags]
    ran = subprocess.run(
        network.command("target", program), capture_output=True, check=True, env=environment()
    )
    return Probe(**json.loads(ran.stdout))


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


def test_packets_are_lost_in_the_share_that_was_set(network: Network) -> None:
    network.one_way("draft", "target", Way(loss=0.2))
    found = ask(network, count=1000, interval=0.0005)
    assert 0.15 < 1 - len(found.numbers) / 1000 < 0.25


def test_a_cut_lets_nothing_through_and_ends(network: Network) -> None:
    network.one_way("draft", "target", Way(is_cut=True))
    assert ask(network, count=20).numbers == []
    network.mend()
    assert len(ask(network, count=20).numbers) == 20
