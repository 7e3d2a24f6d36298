"""Two drafts for one target, each on a host of its own: whichever fails, the other has its sequences soon.

The target knows a name that has two addresses, as a headless service has one for each draft. A draft that is
silent is given up after 2 s; its sequences do not wait so long.
"""

import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.network.decoding import Pair, Target
from tests.network.hosts import Network
from tests.network.programs import Program
from tests.network.relay import Way

HOSTS = ("draft", "other")
SOON = 2.0
"""Seconds, and a prefill: here a matter of milliseconds."""


@dataclass(slots=True)
class Running:
    pair: Pair
    target: Target
    drafts: dict[str, Program]

    def start(self, host: str) -> None:
        """In place of one that has ended."""
        self.drafts[host].end()
        self.drafts[host] = self.pair.draft(host)
        self.target.until(lambda: self.target.now("ready") == len(HOSTS))

    def until_both_draft(self) -> None:
        self.target.until(lambda: self.target.now("ready") == len(HOSTS))
        self.target.until_hits(patience=30)


@pytest.fixture(scope="module")
def _running(_hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("pool")
    names = folder / "hosts"
    names.write_text("".join(f"{_hosts.address(host)} drafts.example\n" for host in HOSTS))
    pair = Pair.on(_hosts, folder / "keys")
    drafts = {host: pair.draft(host) for host in HOSTS}
    flags = ("--batch", "6", "--max-tokens", "100")
    target = pair.target("dns://drafts.example:7000", *flags, hosts_file=names)
    running = Running(pair, target, drafts)
    yield running
    for program in (target, *running.drafts.values()):
        program.end()


@pytest.fixture
def running(network: Network, _running: Running) -> Running:
    _running.until_both_draft()
    return _running


def strike(running: Running, host: str, how: str) -> None:
    process = running.drafts[host].process
    if how == "cut":
        running.pair.network.between("target", host, Way(is_cut=True))
    else:
        process.send_signal(getattr(signal, how))


def mend(running: Running, host: str, how: str) -> None:
    if how == "cut":
        running.pair.network.mend()
    elif how == "SIGSTOP":
        running.drafts[host].process.send_signal(signal.SIGCONT)
    else:
        running.start(host)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "SIGSTOP", "cut"])
def test_a_draft_that_fails_hands_its_sequences_to_the_other(running: Running, how: str) -> None:
    target, host = running.target, random.Random(how).choice(HOSTS)
    before = target.now("moved")
    strike(running, host, how)
    # All sequences may be with the other draft: a target fills one up before it shares them out.
    target.until(lambda: target.now("moved") > before or target.now("ready") < len(HOSTS), patience=20)
    target.until_hits(patience=20)
    seen = target.over(1.0)
    assert seen.hits > 0
    assert seen.pace > 0.5
    assert seen.unheard < 0.5 * seen.rounds, "sequences are left without a draft"
    mend(running, host, how)
    running.until_both_draft()


def test_a_draft_that_drains_is_left_within_a_moment(running: Running) -> None:
    """SIGTERM: it says so itself, so nobody has to find out."""
    target, before = running.target, running.target.now("losses")
    running.drafts["draft"].process.send_signal(signal.SIGTERM)
    target.until(lambda: target.now("losses") > before, patience=SOON)
    assert running.drafts["draft"].process.wait(10) == 0
    running.start("draft")


@pytest.mark.slow
def test_drafts_are_killed_drained_and_upgraded_for_minutes(running: Running) -> None:
    """One hundred times, under load: hits are back within two seconds, and no token is wrong."""
    chance, slowest = random.Random(0), 0.0
    for _ in range(100):
        host, how = chance.choice(HOSTS), chance.choice(["SIGTERM", "SIGKILL", "SIGSTOP", "cut"])
        strike(running, host, how)
        slowest = max(slowest, running.target.until_hits(patience=20))
        mend(running, host, how)
        running.until_both_draft()
    assert slowest < SOON
