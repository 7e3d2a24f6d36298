"""Where drafts are to be had: what an address may be, and what becomes of a name's addresses."""

import threading
import time
from pathlib import Path

import pytest

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import AddressSource, NamedSources, sources_at
from ssd.draft.protocol.messages import PROTOCOL_VERSION, Hello, Sampling
from ssd.draft.protocol.sockets import Keys
from tests.draft.client.test_pool import Draft, Pool

HELLO = Hello(PROTOCOL_VERSION, "same", 100, "someone", "one", 512)
KEYS = Keys(Path("nowhere"))


def names(said: str) -> list[str]:
    return [each.name for each in sources_at(said, HELLO, timeout=1.0, keys=KEYS).current()]


def test_one_address_is_a_list_of_one() -> None:
    assert names("ipc:///run/draft.sock") == ["ipc:///run/draft.sock"]
    assert names("tcp://a:1, tcp://b:2") == ["tcp://a:1", "tcp://b:2"]


@pytest.mark.parametrize("said", ["dns://drafts", "dns://:7000", "dns://drafts:seven"])
def test_a_name_without_a_port_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match="use dns://name:port"):
        sources_at(said, HELLO, timeout=1.0, keys=KEYS)


def test_a_name_needs_keys_as_every_address_that_others_can_reach() -> None:
    with pytest.raises(ValueError, match="needs keys"):
        sources_at("dns://drafts:7000", HELLO, timeout=1.0)


def wait_for_answer(sources: NamedSources) -> None:
    assert sources._asking is not None
    while sources._asking.is_alive():
        time.sleep(0.001)


class Directory:
    """Says what it is told to, when it is asked."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.is_down = False
        self.now = 0.0
        self.sources = NamedSources("drafts", 7000, self.source_at, look_up=self.look_up, clock=self.clock)

    def clock(self) -> float:
        return self.now

    def source_at(self, address: str) -> AddressSource:
        return AddressSource(address, HELLO, timeout=1.0)

    def look_up(self, name: str) -> list[str]:
        assert name == "drafts"
        if self.is_down:
            raise OSError("no such name")
        return self.hosts

    def ask(self) -> list[str]:
        """As it is once the name has been asked for again."""
        self.now += 5.0
        self.sources.current()
        wait_for_answer(self.sources)
        return [each.name for each in self.sources.current()]


def test_drafts_come_and_go_with_the_addresses_of_their_name() -> None:
    directory = Directory()
    assert directory.ask() == []
    directory.hosts = ["10.0.0.1", "10.0.0.2"]
    assert directory.ask() == ["tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000"]
    kept = directory.sources.current()[1]
    directory.hosts = ["10.0.0.2", "10.0.0.3"]
    assert directory.ask() == [f"tcp://10.0.0.{each}:7000" for each in (1, 2, 3)]
    assert directory.sources.current()[1] is kept, "it is the same draft"
    for _ in range(12):
        found = directory.ask()
    assert found == ["tcp://10.0.0.2:7000", "tcp://10.0.0.3:7000"], "one has been missing for a minute"
    assert directory.sources.current()[0] is kept


def test_answers_that_name_a_part_of_the_drafts_move_nothing() -> None:
    """Some name servers give a few addresses of many each time."""
    pool, directory = Pool(), Directory()
    directory.sources = NamedSources(
        "drafts",
        7000,
        lambda address: pool.drafts.setdefault(address, Draft(pool, address)),
        look_up=directory.look_up,
        clock=directory.clock,
    )
    client = DraftClient(directory.sources, lookahead=4, pool_size=8, clock=directory.clock, draw=lambda: 0.0)
    hosts = [f"10.0.0.{each}" for each in range(8)]
    for number in range(40):
        directory.hosts = [hosts[(3 * number + each) % 8] for each in range(3)]
        directory.ask()
        client.pool.tend()
        client.pool.read()
        if number == 10:
            for key in range(64):
                client.follow(key, [key, 2, 3], 3, Sampling(seed=0), 100)
    assert client.stats.num_ready == 8
    assert client.stats.num_moved == 0


def test_a_name_that_cannot_be_looked_up_is_no_news_of_its_drafts() -> None:
    directory = Directory()
    directory.is_down = True
    assert directory.ask() == []
    assert directory.sources.problem() == "cannot look up drafts: no such name"
    directory.is_down, directory.hosts = False, ["10.0.0.1"]
    assert directory.ask() == ["tcp://10.0.0.1:7000"]
    directory.is_down = True
    assert directory.ask() == ["tcp://10.0.0.1:7000"]
    assert directory.sources.problem() == ""


def test_nobody_waits_while_a_name_is_looked_up() -> None:
    may_answer = threading.Event()

    def look_up(_: str) -> list[str]:
        may_answer.wait(20)
        return ["10.0.0.1"]

    sources = NamedSources("drafts", 7000, Directory().source_at, look_up=look_up)
    assert sources.current() == []
    assert sources.current() == []
    may_answer.set()
    wait_for_answer(sources)
    assert len(sources.current()) == 1
