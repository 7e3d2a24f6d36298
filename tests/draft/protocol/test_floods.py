"""Whoever sends without end fills the memory of neither a draft nor an engine. Real sockets and processes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import AddressSource, FixedSources
from ssd.draft.protocol.sockets import MOST_UNREAD, Keys, ZmqDraftSocket, make_keys
from tests.draft.protocol.frames import hello
from tests.draft.protocol.fuzz_frames import resident_bytes

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="bytes that nobody reads are counted on Linux only"
)
PARTS = 240
"""Of 1 MiB each, in one message."""
_BOUND = MOST_UNREAD + (64 << 20)
"""What may be held, and what comes before it is noticed: far less than the message."""
_PATIENCE = 60.0


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path)
    return tmp_path


@contextmanager
def flooding(side: str, address: str, keys: Path, kind: str, count: int) -> Iterator["subprocess.Popen[str]"]:
    words = [
        sys.executable,
        "-m",
        "tests.draft.protocol.flooder",
        side,
        address,
        str(keys / side),
        kind,
        str(count),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def peak_growth(is_over: Callable[[], bool]) -> int:
    """Of this process, in bytes, until something has happened."""
    before = peak = resident_bytes()
    deadline = time.monotonic() + _PATIENCE
    while not is_over():
        assert time.monotonic() < deadline, "nothing happens"
        peak = max(peak, resident_bytes())
    return peak - before


def test_a_message_of_many_parts_does_not_fill_a_draft(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    link = ZmqDraftSocket("tcp://127.0.0.1:0", Keys(keys / "draft"))
    try:
        with flooding("engine", link.endpoint, keys, "parts", PARTS):
            growth = peak_growth(lambda: link.receive(0.005) is not None or "is cut off" in caplog.text)
        assert "is cut off" in caplog.text
        assert growth < _BOUND < PARTS << 20
    finally:
        link.close()


def test_frames_that_a_draft_does_not_read_do_not_fill_it(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So many that they would take 240 MiB."""
    link = ZmqDraftSocket("tcp://127.0.0.1:0", Keys(keys / "draft"))
    try:
        with flooding("engine", link.endpoint, keys, "frames", 60):
            assert peak_growth(lambda: "is cut off" in caplog.text) < _BOUND
    finally:
        link.close()


_DRAFT_IN_A_LONG_STEP = """
import subprocess, sys, time
from pathlib import Path
from ssd.draft.protocol.sockets import Keys, ZmqDraftSocket
link = ZmqDraftSocket("tcp://127.0.0.1:0", Keys(Path(sys.argv[1]) / "draft"))
flooder = ["-m", "tests.draft.protocol.flooder", "engine", link.endpoint, str(Path(sys.argv[1]) / "engine")]
engine = subprocess.Popen([sys.executable, *flooder, "small", "1000"])
assert link.receive(60.0) is not None
time.sleep(0.5)
engine.kill()
engine.wait()
time.sleep(2.5)  # Longer than the time between two heartbeats of a draft.
assert link.receive(1.0) is not None
link.close()
"""


def test_an_engine_that_ends_during_a_long_step_does_not_end_the_draft(keys: Path) -> None:
    """libzmq aborts the process if the queue of the connection is full."""
    command = [sys.executable, "-c", _DRAFT_IN_A_LONG_STEP, str(keys)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    assert run.returncode == 0, run.stderr


def test_a_message_of_many_parts_does_not_fill_an_engine(keys: Path) -> None:
    with flooding("draft", "tcp://127.0.0.1:0", keys, "parts", PARTS) as draft:
        assert draft.stdout is not None
        address = draft.stdout.readline().strip()
        source = AddressSource(address, hello(), timeout=_PATIENCE, keys=Keys(keys / "engine"))
        client = DraftClient(FixedSources(source), lookahead=4)
        try:
            client.pool.start()
            growth = peak_growth(lambda: client.stats.num_losses > 0)
            assert growth < _BOUND < PARTS << 20
            assert "bytes that nobody reads" in client.pool.last_loss
        finally:
            client.pool.close()
