"""Drafts as real processes, on a Unix socket and on TCP with keys: the tokens of plain decoding.

One target and two drafts are shared. Drafts are frozen and killed in the middle of texts, and come back.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from torch import Tensor

from ssd import LLM, SamplingParams
from ssd.attention.batch import Batch
from ssd.attention.inputs import SequenceInput
from ssd.draft.conformance.of_draft import PlayedTarget, opening_of
from ssd.draft.conformance.report import Report
from ssd.draft.protocol.messages import Hello
from ssd.draft.protocol.sockets import ZmqEngineSocket, make_keys
from ssd.runtime.runner import InFlightStep, Runner
from tests.alive import is_alive
from tests.e2e.drafts import Drafts
from tests.tiny import tiny_tokenizer, write_checkpoint

T = TypeVar("T")
PROMPTS = ["The quick brown fox jumps over", "def add(a, b):\n    return a + b\n", "Once upon a time"]
COMMON: dict[str, Any] = {"device": "cpu", "deterministic": True, "show_progress": False}
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=1),
    SamplingParams(
        temperature=0.7, seed=3, max_tokens=40, repetition_penalty=1.2, top_p=0.9, ignore_eos=True
    ),
    SamplingParams(temperature=1.0, seed=5, max_tokens=40, n=2, min_tokens=5, stop=["e", "a b"]),
]
PATIENCE = 60.0


class Slow:
    """A target that takes its time, as large ones do: otherwise it is done before a draft can say a word."""

    is_async = False
    num_uncaptured = 0

    def __init__(self, runner: Runner, seconds: float = 0.02) -> None:
        self._runner, self._seconds = runner, seconds

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        return self._runner.batch(rows)

    def launch(self, batch: Batch, finish: Callable[[Tensor], T]) -> InFlightStep[T]:
        time.sleep(self._seconds)
        return self._runner.launch(batch, finish)


def outputs(llm: LLM) -> list[Any]:
    found = [each.outputs for each in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    llm._engine.core.check_integrity()
    assert llm._engine.blocks.usage == 0
    return found


def hits_after(llm: LLM, expected: list[Any]) -> None:
    """Speculation comes back; until then texts are the same."""
    hits, deadline = llm.stats.speculation.hits, time.monotonic() + PATIENCE
    while llm.stats.speculation.hits == hits:
        assert outputs(llm) == expected
        assert time.monotonic() < deadline, "speculation did not come back"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("medium", tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def llm(target: Path) -> Iterator[LLM]:
    """In each test its mode is changed: the target is loaded once."""
    with LLM(str(target), **COMMON) as found:
        decoder: Any = found._engine.core.decoder
        assert decoder.proposer.is_drafting is False
        yield found


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[Any]:
    llm.switch_mode("ar")
    return outputs(llm)


@pytest.fixture(scope="module")
def drafts(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafts]:
    """A draft that others run, behind a Unix socket."""
    found = Drafts({"one": target}, tmp_path_factory.mktemp("sockets"))
    yield found
    found.close()


def to_draft(llm: LLM, model: str | Path, **settings: Any) -> Any:
    """Switches to mode ssd; returns the decoder, whose target is slow."""
    llm.switch_mode("ssd", draft={"model": str(model), "keys": None, "timeout": 10.0, **settings})
    decoder: Any = llm._engine.core.decoder
    decoder._runner = Slow(decoder._runner)
    return decoder


def in_the_middle(strike: Callable[[], None]) -> threading.Thread:
    thread = threading.Timer(0.3, strike)
    thread.start()
    return thread


def test_a_draft_behind_a_unix_socket_is_shared_killed_and_comes_back(
    llm: LLM, target: Path, drafts: Drafts, expected: list[Any]
) -> None:
    to_draft(llm, drafts.addresses)
    with LLM(str(target), mode="ssd", draft=drafts.addresses, **COMMON) as other:
        assert outputs(llm) == expected
        assert outputs(other) == expected
    hits_after(llm, expected)
    strike = in_the_middle(lambda: drafts.strike("one", signal.SIGKILL))
    assert outputs(llm) == expected
    strike.join()
    assert outputs(llm) == expected
    drafts.start("one")
    hits_after(llm, expected)
    stats = llm.stats.draft
    assert stats is not None
    assert stats.num_losses == 1


def test_a_draft_that_gets_sigusr1_drains(
    llm: LLM, target: Path, tmp_path: Path, expected: list[Any]
) -> None:
    """Its STATS say so, its target asks it no more, and a target that does is declined."""
    shared = Drafts({"one": target}, tmp_path)
    try:
        pool = to_draft(llm, shared.addresses).proposer.speculator.client.pool
        hits_after(llm, expected)
        [replica] = pool.replicas
        assert not replica.drains
        shared.signal("one", signal.SIGUSR1)
        deadline = time.monotonic() + PATIENCE
        while not replica.drains:
            assert time.monotonic() < deadline, "its STATS do not say that it drains"
            assert outputs(llm) == expected
        # Plain decoding, over a connection that stays.
        hits = llm.stats.speculation.hits
        assert outputs(llm) == expected
        assert llm.stats.speculation.hits == hits
        assert replica.is_ready
        assert pool.stats.num_losses == 0
        assert "no new sequences" in _refusal(shared.addresses, replica.connection._hello)
    finally:
        llm.switch_mode("ar")
        shared.close()


def test_a_frozen_draft_of_its_own_is_killed_and_replaced(
    llm: LLM, target: Path, expected: list[Any]
) -> None:
    decoder = to_draft(llm, target, timeout=3.0)
    replica = decoder.proposer.speculator.client.pool.replicas[0]
    hits_after(llm, expected)
    pid = replica.source.pid
    strike = in_the_middle(lambda: os.kill(pid, signal.SIGSTOP))
    assert outputs(llm) == expected
    strike.join()
    # It is found to be silent, and another takes its place.
    hits_after(llm, expected)
    assert llm.stats.draft is not None
    assert llm.stats.draft.num_losses >= 1
    assert replica.source.pid != pid
    last = replica.source.pid
    llm.switch_mode("ar")
    assert outputs(llm) == expected
    deadline = time.monotonic() + PATIENCE
    while (is_alive(pid) or is_alive(last)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)
    assert not is_alive(last)


def test_tcp_needs_keys_and_lets_only_their_holder_in(
    llm: LLM, target: Path, tmp_path: Path, expected: list[Any]
) -> None:
    with pytest.raises(ValueError, match="needs keys"):
        llm.switch_mode("ssd", draft="tcp://127.0.0.1:5999")
    make_keys(tmp_path / "keys")
    make_keys(tmp_path / "strange")
    # A stranger who has got hold of the draft's public key is a stranger still.
    shutil.copy(tmp_path / "keys/engine/draft.key", tmp_path / "strange/engine/draft.key")
    keys, strange = str(tmp_path / "keys/engine"), str(tmp_path / "strange/engine")
    where = f"tcp://127.0.0.1:{_free_port()}"
    options = ["--model", str(target), "--listen", where, "--keys", str(tmp_path / "keys/draft")]
    draft = subprocess.Popen([sys.executable, "-m", "ssd", "draft", *options])
    try:
        to_draft(llm, where, keys=keys, timeout=60.0)
        assert outputs(llm) == expected
        hits_after(llm, expected)
        with pytest.raises(ValueError, match="the draft did not start"):
            to_draft(llm, where, keys=strange, timeout=3.0)
    finally:
        draft.terminate()
        draft.wait(10)


def test_a_draft_of_another_family_is_refused_with_a_remedy(tmp_path: Path, drafts: Drafts) -> None:
    other = write_checkpoint("qwen2", tmp_path / "other")
    tiny_tokenizer(["entirely different words about rivers, mountains and trains"]).save_pretrained(other)
    with pytest.raises(ValueError, match="use a draft of the same family"):
        LLM(str(other), mode="ssd", draft=drafts.addresses, **COMMON)


def test_a_draft_that_cannot_start_says_so(
    llm: LLM, target: Path, tmp_path: Path, expected: list[Any]
) -> None:
    shutil.copytree(target, tmp_path / "broken")
    (tmp_path / "broken/model.safetensors").write_bytes(b"no weights")
    for model, message in (
        (tmp_path / "nothing", r"no model at .*nothing"),
        (tmp_path / "broken", "did not start"),
    ):
        with pytest.raises(ValueError, match=message):
            to_draft(llm, model)
    # Nothing has changed.
    assert outputs(llm) == expected


def test_a_request_may_name_its_draft(llm: LLM, target: Path, tmp_path: Path) -> None:
    named = Drafts({"one": target, "two": target}, tmp_path)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, draft="two")
    try:
        pool = to_draft(llm, named.addresses).proposer.speculator.client.pool
        deadline = time.monotonic() + PATIENCE
        while pool.stats.num_ready < 2:
            assert time.monotonic() < deadline, "a draft is missing"
            time.sleep(0.05)
        llm.generate([f"def add{number}(" for number in range(6)], params, use_tqdm=False)
        rows = {each.draft_name: each.stats.num_own_rows if each.stats else 0 for each in pool.replicas}
        assert llm.stats.speculation.hits > 0
    finally:
        llm.switch_mode("ar")
        named.close()
    assert rows["one"] == 0 < rows["two"]


def _refusal(address: str, hello: Hello) -> str:
    """Why the draft does not take a new sequence of another target."""
    link = ZmqEngineSocket(address)
    try:
        other = PlayedTarget(link, Report(), replace(hello, name="another"), PATIENCE)
        assert other.greet() is not None
        other.send(opening_of(1, 1))
        close = other.closed(1)
        return close.reason if close is not None else ""
    finally:
        link.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
