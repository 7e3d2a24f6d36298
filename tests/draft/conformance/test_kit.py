"""The conformance kit passes both of our sides, and catches a fault against each rule."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benchmarks.ruled import hello, outcome, prompt_of
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import AddressSource, FixedSources
from ssd.draft.conformance import report as rules
from ssd.draft.conformance.__main__ import check_draft
from ssd.draft.conformance.of_draft import DraftChecks
from ssd.draft.conformance.of_target import TargetChecks
from ssd.draft.conformance.report import RULES, Report
from ssd.draft.protocol import sockets
from ssd.draft.protocol.messages import Sampling
from ssd.draft.protocol.sockets import (
    DraftSocket,
    EngineSocket,
    Heard,
    Keys,
    ZmqDraftSocket,
    ZmqEngineSocket,
    make_keys,
)
from tests.draft.conformance.faults import OF_DRAFTS, OF_TARGETS, WireFault
from tests.draft.served import Served

Wrapped = Callable[[EngineSocket], EngineSocket]


class FaultyDraftSocket:
    def __init__(self, link: DraftSocket, fault: WireFault) -> None:
        self._link, self._fault = link, fault

    def send(self, peer: bytes, frame: bytes) -> None:
        changed = self._fault.changed(frame, self._fault.sent)
        if changed != b"\x90":
            self._link.send(peer, changed[: len(changed) - self._fault.shortened])

    def receive(self, timeout: float) -> Heard | None:
        heard = self._link.receive(timeout)
        return heard and heard._replace(frame=self._fault.changed(heard.frame, self._fault.heard))

    def close(self) -> None:
        self._link.close()


class FaultyEngineSocket:
    def __init__(self, link: EngineSocket, fault: WireFault) -> None:
        self._link, self._fault = link, fault

    def send(self, frame: bytes) -> None:
        changed = self._fault.changed(frame, self._fault.sent)
        if changed != b"\x90":
            self._link.send(changed[: len(changed) - self._fault.shortened])

    def receive(self, timeout: float) -> bytes | None:
        frame = self._link.receive(timeout)
        return frame and self._fault.changed(frame, self._fault.heard)

    def overfull(self) -> str:
        return self._link.overfull()

    def close(self) -> None:
        self._link.close()


@contextmanager
def draft_at(address: str, fault: WireFault | None = None, keys: Keys | None = None) -> Iterator[Served]:
    served = Served(
        address, keys, wrap=lambda link: link if fault is None else FaultyDraftSocket(link, fault)
    )
    try:
        yield served
    finally:
        served.close()


@contextmanager
def target_at(address: str, fault: WireFault | None = None, keys: Keys | None = None) -> Iterator[None]:
    """Generates texts by a rule, two at a time, until the end."""
    is_over = threading.Event()

    def open_socket(address: str, keys: Keys | None) -> EngineSocket:
        link = ZmqEngineSocket(address, keys)
        return link if fault is None else FaultyEngineSocket(link, fault)

    def run() -> None:
        source = AddressSource(address, hello("target"), timeout=60.0, keys=keys, open_socket=open_socket)
        client = DraftClient(FixedSources(source), lookahead=4)
        client.pool.start()
        number = 0
        while not is_over.is_set():
            number += 2
            generate(client, [number, number + 1], is_over)
        client.pool.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def generate(client: DraftClient, names: list[int], is_over: threading.Event) -> None:
    last = dict.fromkeys(names, 0)
    for name in names:
        prompt = prompt_of(name)
        client.follow(name, prompt, len(prompt), Sampling(seed=1), 3000)
        last[name] = prompt[-1]
    for _ in range(1000):
        if is_over.is_set():
            break
        client.wait(names, 0.002)
        said = [
            outcome(last[name], path.tokens) for name, path in zip(names, client.paths(names, 4), strict=True)
        ]
        client.outcomes(list(zip(names, said, strict=True)))
        last = {name: tokens[-1] for name, tokens in zip(names, said, strict=True)}
    for name in names:
        client.forget(name)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/socket"


@contextmanager
def played_draft(address: str, keys: Keys | None = None, patience: float = 20.0) -> Iterator[TargetChecks]:
    link = ZmqDraftSocket(address, keys)
    try:
        yield TargetChecks(link, Report(), patience=patience)
    finally:
        link.close()


def test_our_draft_keeps_all_rules(address: str) -> None:
    report = Report()
    with draft_at(address) as served:
        check_draft(address, None, report)
        served.service.drains = True
        DraftChecks(partial(ZmqEngineSocket, address), report).asks()
    assert not report.broken, [*report.lines(set())]
    assert report.kept >= rules.OF_DRAFTS - {34}


def test_where_no_draft_answers_nothing_is_checked(address: str) -> None:
    report = rules.Report()
    assert not DraftChecks(partial(ZmqEngineSocket, address), report, patience=0.2).run()
    assert not report.kept


def test_our_target_keeps_all_rules(address: str) -> None:
    with played_draft(address) as checks, target_at(address):
        checks.run()
    assert not checks.report.broken, [*checks.report.lines(set())]
    assert checks.report.kept >= rules.OF_TARGETS


def test_both_sides_keep_all_rules_over_tcp_with_keys(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    ours, theirs = Keys(tmp_path / "keys/draft"), Keys(tmp_path / "keys/engine")
    report = Report()
    with draft_at("tcp://127.0.0.1:*", keys=ours) as served:
        check_draft(served.link.endpoint, theirs, report)
    assert not report.broken, [*report.lines(set())]
    assert report.kept >= rules.OF_DRAFTS - {16}
    link = ZmqDraftSocket("tcp://127.0.0.1:*", ours)
    checks = TargetChecks(link, Report(), patience=20.0)
    with target_at(link.endpoint, keys=theirs):
        checks.run()
    link.close()
    assert not checks.report.broken
    assert checks.report.kept >= rules.OF_TARGETS


@pytest.mark.parametrize("fault", OF_DRAFTS, ids=lambda fault: f"R{fault.rule} {fault.check}")
def test_a_draft_that_breaks_a_rule_is_caught(fault: WireFault, address: str) -> None:
    report = Report()
    with draft_at(address, fault):
        getattr(DraftChecks(partial(ZmqEngineSocket, address), report, patience=0.5), fault.check)()
    assert fault.rule in report.broken


@pytest.mark.parametrize("fault", OF_TARGETS, ids=lambda fault: f"R{fault.rule} {fault.check}")
def test_a_target_that_breaks_a_rule_is_caught(fault: WireFault, address: str) -> None:
    with played_draft(address, patience=1.0) as checks, target_at(address, fault):
        if checks.connects():
            checks.greets()
            getattr(checks, fault.check)()
    assert fault.rule in checks.report.broken


def test_a_draft_that_does_not_forget_is_caught(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report()
    with draft_at(address) as served:
        monkeypatch.setattr(served.service, "_forget", lambda peer: None)
        DraftChecks(partial(ZmqEngineSocket, address), report, patience=0.5).invalid_frames()
        monkeypatch.undo()
    assert 7 in report.broken


def test_a_target_that_does_not_hear_that_it_is_forgotten_is_caught(address: str) -> None:
    greetings = 0

    def first_only(messages: list[dict[str, object]]) -> list[dict[str, object]]:
        nonlocal greetings
        is_hello = any(message["type"] == "hello" for message in messages)
        greetings += is_hello
        return [] if is_hello and greetings > 1 else messages

    with (
        played_draft(address, patience=2.0) as checks,
        target_at(address, WireFault(7, "", heard=first_only)),
    ):
        checks.run()
    assert 7 in checks.report.broken


def test_a_draft_that_lets_in_every_key_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path / "keys")
    monkeypatch.setattr(sockets._OnlyKnown, "callback", lambda self, domain, key: True)
    monkeypatch.setattr(ZmqDraftSocket, "_key_of", lambda self, part: "")
    report = Report()
    with draft_at("tcp://127.0.0.1:*", keys=Keys(tmp_path / "keys/draft")) as served:
        check_draft(served.link.endpoint, Keys(tmp_path / "keys/engine"), report)
    assert report.broken == {34}


def test_each_rule_that_can_be_checked_has_a_fault() -> None:
    assert {fault.rule for fault in OF_DRAFTS} | {7, 34} == rules.OF_DRAFTS
    assert {fault.rule for fault in OF_TARGETS} | {7} == rules.OF_TARGETS
    assert RULES.keys() == rules.OF_DRAFTS | rules.OF_TARGETS


def test_the_command_prints_a_line_for_each_rule(address: str) -> None:
    with draft_at(address):
        command = [sys.executable, "-m", "ssd.draft.conformance", "--draft", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        f"R{rule}" for rule in sorted(rules.OF_DRAFTS)
    ]
    assert "R22  pass" in done.stdout
    assert "R16  not exercised" in done.stdout
