"""A pool of real drafts behind one engine: the AR tokens, while drafts are killed, drained and come back."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssd import LLM
from tests.e2e.process_faults import Slow
from tests.e2e.test_ssd import COMMON, outputs
from tests.tiny import write_checkpoint


class Pool:
    """Two drafts, each a process of its own at an address of its own."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model = model
        self._addresses = [f"ipc://{folder}/{name}.sock" for name in ("one", "two")]
        self._processes = {address: self._start(address) for address in self._addresses}

    @property
    def addresses(self) -> str:
        return ",".join(self._addresses)

    def strike(self, place: int, how: int) -> None:
        """Ends one, and starts it again."""
        address = self._addresses[place]
        self._processes[address].send_signal(how)
        self._processes[address].wait(60)
        self._processes[address] = self._start(address)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _start(self, address: str) -> "subprocess.Popen[str]":
        program = [sys.executable, "-m", "ssd", "draft", "--model", str(self._model), "--listen", address]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("drafting with")
        return process


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("medium", tmp_path_factory.mktemp("target"))


@pytest.fixture
def pool(target: Path, tmp_path: Path) -> Iterator[Pool]:
    made = Pool(target, tmp_path)
    yield made
    made.close()


def test_tokens_are_the_targets_while_drafts_come_and_go(target: Path, pool: Pool) -> None:
    expected = outputs(LLM(str(target), **COMMON))
    draft = {"model": pool.addresses, "timeout": 2.0}
    with LLM(str(target), mode="ssd", draft=draft, **COMMON) as llm:
        decoder: Any = llm._engine.core.decoder
        decoder._runner = Slow(decoder._runner)
        for place, how in ((0, signal.SIGTERM), (1, signal.SIGKILL)):
            _until_ready(llm, 2)
            assert outputs(llm) == expected
            pool.strike(place, how)
            assert outputs(llm) == expected
        stats = llm.stats
    assert stats.speculation.hits > 0
    assert stats.draft is not None
    assert stats.draft.num_losses >= 2


def _until_ready(llm: LLM, count: int) -> None:
    deadline = time.monotonic() + 60
    while (draft := llm.stats.draft) is None or draft.num_ready < count:
        assert time.monotonic() < deadline, "a draft is missing"
        time.sleep(0.05)
