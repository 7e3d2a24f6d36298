"""vLLM and its draft as two processes of one command, with small programs in their places."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssd.integrations.vllm import pair as pair_module
from ssd.processes.child import Child
from ssd.processes.signals import Signals
from tests.alive import is_alive
from tests.server.process import free_port, until

_COMMAND = """
import logging, sys
from pathlib import Path
from ssd.integrations.vllm.pair import Program, Programs, run_pair
logging.basicConfig(level=logging.INFO, format="ssd: %(message)s")
notes, server, draft, port = sys.argv[1:]
def programs(folder):
    (Path(notes) / "folder").write_text(f"{folder} ")
    told = [notes, str(folder)]
    return Programs(
        server=Program(arguments=["-c", server, "server", *told], environment={"MINE": "server"}),
        draft=Program(arguments=["-c", draft, "draft", *told], environment={"MINE": "draft"}) if draft
        else None,
        drain_seconds=0,
        draft_waits_for=("127.0.0.1", int(port)) if port != "0" else None,
    )
sys.exit(run_pair(programs))
"""
_CHILD = """
import os, shutil, signal, sys, time
from pathlib import Path
from ssd.processes.lifeline import end_with_parent
name, notes, folder = sys.argv[1:]
assert os.environ["MINE"] == name
end_with_parent(lambda: shutil.rmtree(folder, ignore_errors=True))
{more}
with (Path(notes) / name).open("a") as file:
    file.write(f"{{os.getpid()}} ")
time.sleep(60)
"""
LIVES = _CHILD.format(more="")
SAYS_ITS_SIGNAL = _CHILD.format(
    more="""
def said(number, frame):
    (Path(notes) / "signal").write_text(f"{number} ")
    sys.exit(0)
signal.signal(signal.SIGTERM, said)
signal.signal(signal.SIGINT, said)
"""
)
DEAF = _CHILD.format(more="signal.signal(signal.SIGTERM, signal.SIG_IGN)")


class Pair:
    def __init__(self, folder: Path, server: str = LIVES, draft: str = LIVES, port: int = 0) -> None:
        self._folder = folder
        command = [sys.executable, "-c", _COMMAND, str(folder), server, draft, str(port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def pids(self, name: str) -> list[int]:
        path = self._folder / name
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def until_both_run(self) -> None:
        until(lambda: bool(self.pids("server") and self.pids("draft")))

    def ended(self) -> tuple[int, str]:
        """Exit code and what was said; nothing of it is left."""
        _, said = self.process.communicate(timeout=30)
        until(self.is_gone)
        return self.process.returncode, said

    def is_gone(self) -> bool:
        folder = Path((self._folder / "folder").read_text().strip())
        return not folder.exists() and not any(map(is_alive, self.pids("server") + self.pids("draft")))


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Pair]]:
    pairs: list[Pair] = []
    yield pairs
    for pair in pairs:
        pair.process.kill()
        pair.process.wait()


def start(started: list[Pair], tmp_path: Path, **programs: Any) -> Pair:
    started.append(Pair(tmp_path, **programs))
    return started[-1]


@pytest.mark.parametrize(
    ("ends", "code"),
    [("sys.exit(0)", 0), ("sys.exit(9)", 9), ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
)
def test_the_servers_exit_code_is_the_commands(
    started: list[Pair], tmp_path: Path, ends: str, code: int
) -> None:
    """Beside a draft or alone; one that was killed is told as shells do."""
    server = _CHILD.format(more=f"time.sleep(0.5); {ends}")
    found, said = start(started, tmp_path, server=server, draft=LIVES if code else "").ended()
    assert found == code
    assert "vLLM ended with code" in said


def test_a_draft_that_dies_comes_back_and_the_server_goes_on(started: list[Pair], tmp_path: Path) -> None:
    pair = start(started, tmp_path)
    pair.until_both_run()
    os.kill(pair.pids("draft")[0], signal.SIGKILL)
    until(lambda: len(pair.pids("draft")) == 2)
    assert len(pair.pids("server")) == 1
    assert is_alive(pair.pids("server")[0])
    pair.process.send_signal(signal.SIGTERM)
    code, said = pair.ended()
    assert code == 0
    assert "the draft ended with code -9: it was killed, by a user or because memory ran out" in said
    assert "and is started again; vLLM goes on" in said


def test_a_draft_that_cannot_be_started_just_now_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for another process, say: vLLM goes on, and so does the watching."""
    programs = pair_module.Programs(
        server=pair_module.Program(arguments=["-c", "import time; time.sleep(60)"]),
        draft=pair_module.Program(arguments=["-c", ""]),
    )
    found = pair_module._Pair(programs, Signals([]))
    tries = iter([OSError("no memory"), OSError("no memory")])

    def start(self: Child) -> bool:
        for error in tries:
            raise error
        return True

    monkeypatch.setattr(Child, "start", start)
    assert [found._watch_draft() for _ in range(3)] == [None] * 3
    assert found._has_restarted


def test_a_draft_that_cannot_work_ends_it_all(started: list[Pair], tmp_path: Path) -> None:
    code, said = start(started, tmp_path, draft="import sys; sys.exit(2)").ended()
    assert code == 2
    assert "the draft cannot start as it is told" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ends", ["sys.exit(0)", "raise KeyboardInterrupt"])
def test_a_signal_goes_on_to_the_server(
    started: list[Pair], tmp_path: Path, number: signal.Signals, ends: str
) -> None:
    """vLLM calls every signal an interrupt while it starts: it was asked to end, and did."""
    pair = start(started, tmp_path, server=SAYS_ITS_SIGNAL.replace("sys.exit(0)", ends))
    pair.until_both_run()
    pair.process.send_signal(number)
    assert pair.ended()[0] == 0
    assert (tmp_path / "signal").read_text() == f"{number.value} "


def test_one_that_does_not_end_in_time_is_ended(started: list[Pair], tmp_path: Path) -> None:
    """vLLM waits for ever for streams that its engine has left. Who asked for the end gets it, and once."""
    pair = start(started, tmp_path, server=DEAF)
    pair.until_both_run()
    pair.process.send_signal(signal.SIGTERM)
    started_at = time.monotonic()
    code, said = pair.ended()
    assert code == 0, said
    assert "vLLM did not end in time, and is ended" in said
    assert time.monotonic() - started_at > 10


def test_a_second_signal_ends_it_at_once(started: list[Pair], tmp_path: Path) -> None:
    # That it waits, and is not merely slow, shows in what it says.
    pair = start(started, tmp_path, server=_CHILD.format(more="signal.signal(signal.SIGINT, signal.SIG_IGN)"))
    pair.until_both_run()
    pair.process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert pair.process.poll() is None
    pair.process.send_signal(signal.SIGINT)
    code, said = pair.ended()
    assert code == 0
    assert "did not end in time" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("delay", [0.0, 0.15, 0.6])
def test_it_ends_without_a_trace_at_any_moment(
    started: list[Pair], tmp_path: Path, number: signal.Signals, delay: float
) -> None:
    """Also while its processes start."""
    pair = start(started, tmp_path)
    until((tmp_path / "folder").exists)
    time.sleep(delay)
    pair.process.send_signal(number)
    _, _ = pair.process.communicate(timeout=30)
    until(pair.is_gone)
    time.sleep(0.2)  # Whoever was about to write its number.
    assert pair.is_gone()


def test_a_draft_on_vllms_gpu_starts_once_vllm_listens(started: list[Pair], tmp_path: Path) -> None:
    """vLLM binds its port first, and listens when it has taken its memory."""
    port = free_port()
    listens_late = _CHILD.format(
        more=f"""
import socket
port = socket.socket()
port.bind(("127.0.0.1", {port}))
time.sleep(1)
(Path(notes) / "listens").write_text("")
port.listen()
"""
    )
    draft = _CHILD.format(more='(Path(notes) / "listens").exists() or (Path(notes) / "early").touch()')
    pair = start(started, tmp_path, server=listens_late, draft=draft, port=port)
    pair.until_both_run()
    pair.process.send_signal(signal.SIGTERM)
    code, said = pair.ended()
    assert code == 0, said
    assert "vLLM listens, and has taken its memory: the draft is started" in said
    assert not (tmp_path / "early").exists()


def test_a_draft_that_finds_no_room_beside_a_vllm_that_serves_does_not_end_it(
    started: list[Pair], tmp_path: Path
) -> None:
    port = free_port()
    listens = f"import socket; port = socket.create_server(('127.0.0.1', {port}))"
    pair = start(
        started,
        tmp_path,
        server=_CHILD.format(more=listens),
        draft='import sys; from pathlib import Path; Path(sys.argv[2], "tried").touch(); sys.exit(2)',
        port=port,
    )
    until(lambda: (tmp_path / "tried").exists())
    time.sleep(1.0)
    assert pair.process.poll() is None
    pair.process.send_signal(signal.SIGTERM)
    code, said = pair.ended()
    assert code == 0, said
    assert "vLLM serves already, and goes on without a draft" in said
