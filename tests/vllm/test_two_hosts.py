"""What campaigns.vllm.two_hosts judges by, and its hosts. The whole takes minutes, and is run by command."""

import subprocess
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")
from benchmarks.streams import Seen, Undisturbed
from campaigns.vllm import two_hosts
from campaigns.vllm.two_hosts import DRAFTING, FIRST, SECOND, Fleet, compared, cut_off, with_draft
from tests.network.hosts import Network, environment, refusal
from tests.network.relay import Way

USUAL = Undisturbed(["a greedy text", "a drawn one"], 0.1)


class CountingServer:
    """Counts as told, each time it is asked."""

    def __init__(self, **increments: float) -> None:
        self._increments, self._asked = increments, Counter[str]()

    def counted(self, name: str) -> float:
        self._asked[name] += 1
        return self._increments[name] * self._asked[name]


def found_with(monkeypatch: pytest.MonkeyPatch, seen: Seen, *, hits: float = 3.0) -> dict[str, Any]:
    class Streamed:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def join(self) -> Seen:
            return seen

    monkeypatch.setattr(two_hosts, "Streams", Streamed)
    server: Any = CountingServer(ssd_spec_hits_total=hits, ssd_rounds_total=5.0)
    return with_draft(server, USUAL, USUAL, {}, rounds=1)


def test_equal_texts_with_hits_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_with(monkeypatch, Seen(texts=[*enumerate(USUAL.texts)]))
    assert (found["equal"], found["equal_to_one_host"], found["hits"], found["rounds"]) == (2, 2, 3.0, 5.0)
    assert not found["wrong"]


@pytest.mark.parametrize(
    ("seen", "hits", "words"),
    [
        (Seen(texts=[(0, "another text")]), 3.0, "another text"),
        (Seen(texts=[(0, USUAL.texts[0])], lost=["stream 1: gone"]), 3.0, "gone"),
        (Seen(texts=[(0, USUAL.texts[0])]), 0.0, "no hit"),
    ],
)
def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch, seen: Seen, hits: float, words: str) -> None:
    [said] = found_with(monkeypatch, seen, hits=hits)["wrong"]
    assert words in said


def test_texts_of_two_hosts_are_compared_with_those_of_one() -> None:
    assert compared(USUAL.texts, USUAL.texts) == (2, [])
    equal, [said] = compared(["a greedy text", "a drawn other"], USUAL.texts)
    assert equal == 1
    assert "a drawn other" in said


class TellingNetwork:
    """Which lines are cut, whenever one is set."""

    def __init__(self) -> None:
        self.cut: list[set[str]] = []
        self.is_whole = True

    def between(self, one: str, other: str, way: Way) -> None:
        assert way.is_cut
        self.cut.append({one, other})
        self.is_whole = False

    def mend(self) -> None:
        self.is_whole = True


def test_the_drafts_host_is_cut_off_from_both_and_comes_back(tmp_path: Path) -> None:
    network: Any = TellingNetwork()
    Fleet(network, tmp_path, Namespace()).cut_off(0.0)
    assert network.cut == [{FIRST, DRAFTING}, {SECOND, DRAFTING}]
    assert network.is_whole


class Disturbed:
    """A server whose draft went away, or did not; whatever happened, it went well."""

    def __init__(self, losses: float) -> None:
        self.server = CountingServer(ssd_draft_losses=losses)

    def disturb(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"wrong": []}


@pytest.mark.parametrize(("number", "losses", "wrong"), [(0, 0.0, 0), (0, 1.0, 1), (1, 0.0, 1), (1, 1.0, 0)])
def test_a_long_cut_has_to_be_noticed_and_a_short_one_not(
    tmp_path: Path, number: int, losses: float, wrong: int
) -> None:
    fleet, happens = Fleet(TellingNetwork(), tmp_path, Namespace()), Disturbed(losses)  # type: ignore[arg-type]
    found = cut_off(fleet, happens, number)  # type: ignore[arg-type]
    assert found["losses"] == losses
    assert len(found["wrong"]) == wrong


def test_a_host_has_shared_memory_of_its_own() -> None:
    if reason := refusal():
        pytest.skip(reason)
    script = "touch /dev/shm/two-hosts; ls /dev/shm"
    with Network(*two_hosts.HOSTS) as network:
        said = subprocess.run(
            network.command(FIRST, two_hosts.with_own_memory(["sh", "-c", script])),
            capture_output=True,
            check=True,
            text=True,
            env=environment(),
        ).stdout
    assert said.split() == ["two-hosts"]
    assert not Path("/dev/shm/two-hosts").exists()
