"""A child process, whatever it runs: real processes, small programs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ssd.processes import child as child_module
from ssd.processes.child import Child
from ssd.processes.process_group import kill_group
from tests.alive import is_alive
from tests.server.process import until

_SLEEPS = "import time; time.sleep(60)"
_SAYS_SO_AND_SLEEPS = """
import sys, time
from pathlib import Path
Path(sys.argv[1]).write_text("here ")
time.sleep(60)
"""
_WITH_GRANDCHILD = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Path(sys.argv[1]).write_text(str(child.pid) + " ")
time.sleep(float(sys.argv[2]))
"""
_DEAF = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).write_text("ready ")
time.sleep(60)
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def child(program: str, *arguments: str, clock: Clock | None = None, **more: bool | float | bytes) -> Child:
    command = [sys.executable, "-c", program, *arguments]
    return Child(command, name="a test", clock=clock or Clock(), **more)  # type: ignore[arg-type]


def written(path: Path) -> str:
    until(lambda: path.exists() and path.read_text().endswith(" "))
    return path.read_text()


def test_its_exit_code_is_known_once_it_has_ended() -> None:
    ran = child("import sys; sys.exit(7)")
    assert ran.exit_code is None
    assert ran.start()
    until(lambda: ran.exit_code is not None)
    assert ran.exit_code == 7
    ran.end()
    assert ran.pid is None


def test_variables_are_added_to_those_of_this_process(tmp_path: Path) -> None:
    program = "import os, sys; sys.exit(0 if os.environ['MINE'] == 'yes' and 'PATH' in os.environ else 1)"
    ran = Child([sys.executable, "-c", program], name="a test", environment={"MINE": "yes"})
    ran.start()
    until(lambda: ran.exit_code is not None)
    assert ran.exit_code == 0


def test_its_first_line_is_told_with_every_start(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; Path(sys.argv[1]).write_text(input() + ' '); input()"
    clock = Clock()
    ran = child(program, str(tmp_path / "heard"), clock=clock, first_line=b"the settings")
    for _ in range(2):
        assert ran.start()
        assert written(tmp_path / "heard") == "the settings "
        assert ran.exit_code is None, "its lifeline stays open"
        (tmp_path / "heard").unlink()
        ran.end()
        clock.now += 1


def test_one_that_hears_nothing_is_no_error_to_start() -> None:
    ran = child("import os; os.close(0)", first_line=b"x" * (1 << 20))
    assert ran.start()
    until(lambda: ran.exit_code is not None)
    ran.end()


def test_each_new_start_waits_longer_until_one_lived_long() -> None:
    clock = Clock()
    ran = child("", clock=clock)
    waits = []
    for _ in range(8):
        started = clock.now
        while not ran.start():
            clock.now += 0.25
        waits.append(clock.now - started)
        until(lambda: ran.exit_code is not None)
    assert waits == [0, 0.5, 1, 2, 4, 8, 16, 30]
    ran.end()


def test_after_a_long_life_it_comes_back_soon() -> None:
    clock = Clock()
    ran = child(_SLEEPS, clock=clock)
    for wait in (0, 0.5, 1, 2):
        clock.now += wait
        until(ran.start)
    clock.now += 60
    ran.signal(signal.SIGKILL)
    until(lambda: ran.exit_code is not None)
    clock.now += 60
    assert ran.start()
    clock.now += 0.5
    until(ran.start)
    ran.end()


def test_loading_is_no_long_life() -> None:
    clock = Clock()
    ran = child(_SLEEPS, clock=clock, tells_ready=True)
    for wait in (0, 100, 100):
        clock.now += wait
        until(ran.start)
    clock.now += 1.9
    assert not ran.start()
    ran.note_ready()
    clock.now += 100
    until(ran.start)
    clock.now += 0.5
    until(ran.start)
    ran.end()


def test_one_that_runs_is_replaced() -> None:
    clock = Clock()
    ran = child(_SLEEPS, clock=clock)
    ran.start()
    first = ran.pid
    assert first is not None
    clock.now = 1
    until(ran.start)
    assert ran.pid != first
    assert not is_alive(first)
    ran.end()


@pytest.mark.parametrize("seconds", ["60", "0"], ids=["it still runs", "it has ended before"])
def test_what_it_started_ends_with_it(tmp_path: Path, seconds: str) -> None:
    ran = child(_WITH_GRANDCHILD, str(tmp_path / "pid"), seconds)
    ran.start()
    grandchild = int(written(tmp_path / "pid"))
    if seconds == "0":
        until(lambda: ran.exit_code is not None)
        assert is_alive(grandchild)
    ran.end()
    until(lambda: not is_alive(grandchild), seconds=20)


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="nobody can tell here whose a number is")
@pytest.mark.parametrize("how", ["ended by itself", "asked to end", "deaf", "started again"])
def test_its_group_is_killed_while_its_number_is_still_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Once it is reaped, its number may be that of a stranger's group."""
    was_ours = list[bool]()

    def note(group: int) -> None:
        try:
            os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            was_ours.append(True)
        except ChildProcessError:
            was_ours.append(False)
        kill_group(group)

    monkeypatch.setattr(child_module, "kill_group", note)
    clock = Clock()
    program = {"ended by itself": "pass", "deaf": _DEAF}.get(how, _SLEEPS)
    ran = child(program, str(tmp_path / "ready"), clock=clock, grace=0.1 if how == "deaf" else 20.0)
    ran.start()
    if how == "deaf":
        written(tmp_path / "ready")
    elif how == "ended by itself":
        until(lambda: ran.exit_code is not None)
        ran.signal(signal.SIGTERM)
        assert ran.exit_code == 0
    elif how == "started again":
        clock.now = 100.0
        until(ran.start)
    ran.end()
    assert was_ours == [True] * (2 if how == "started again" else 1)


def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    ran = child(_DEAF, str(tmp_path / "ready"), grace=0.2)
    ran.start()
    written(tmp_path / "ready")
    pid = ran.pid
    assert pid is not None
    ran.end()
    # It would have slept on.
    assert not is_alive(pid)


def test_signals_reach_it(tmp_path: Path) -> None:
    ran = child(_SAYS_SO_AND_SLEEPS, str(tmp_path / "said"))
    ran.signal(signal.SIGTERM)  # Nobody is there yet.
    ran.start()
    written(tmp_path / "said")
    ran.signal(signal.SIGTERM)  # No interrupt: what a shell runs in the background does not hear those.
    until(lambda: ran.exit_code is not None)
    assert ran.exit_code == -signal.SIGTERM


_PARENT = """
import sys, time
from ssd.processes.child import Child
Child([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], name="a test").start()
time.sleep(60)
"""
_ON_A_LIFELINE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from ssd.processes.lifeline import end_with_parent
folder = Path(sys.argv[1])
(folder / "private").mkdir()
end_with_parent((folder / "private").rmdir, grace=0.5)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / "pids").write_text(f"{os.getpid()} {child.pid} ")
time.sleep(60)
"""


@pytest.mark.parametrize("manner", ["listens", "deaf"])
def test_a_killed_parent_takes_all_with_it(tmp_path: Path, manner: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, _ON_A_LIFELINE, str(tmp_path), manner])
    pids = [int(pid) for pid in written(tmp_path / "pids").split()]
    assert all(map(is_alive, pids))
    parent.kill()
    parent.wait()
    until(lambda: not any(map(is_alive, pids)), seconds=20)
    assert not (tmp_path / "private").exists()


_SHARES_MEMORY = """
import signal, sys, time
from multiprocessing import shared_memory
from pathlib import Path
from ssd.processes.lifeline import end_with_parent
folder = Path(sys.argv[1])
end_with_parent(lambda: None, grace=0.5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = shared_memory.SharedMemory(create=True, size=16)
(folder / "name").write_text(f"{memory.name} ")
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="shared memory is not seen as files here")
@pytest.mark.parametrize("ended_by", ["its parent", "its lifeline"])
def test_shared_memory_goes_with_who_made_it(tmp_path: Path, ended_by: str) -> None:
    """As vLLM's: who is killed cannot remove it, and leaves that to a process of Python's own."""
    if ended_by == "its parent":
        ran = child(_SHARES_MEMORY, str(tmp_path), grace=0.2)
        ran.start()
        memory = Path("/dev/shm") / written(tmp_path / "name").strip()
        assert memory.exists()
        ran.end()
    else:
        parent = subprocess.Popen([sys.executable, "-c", _PARENT, _SHARES_MEMORY, str(tmp_path)])
        memory = Path("/dev/shm") / written(tmp_path / "name").strip()
        assert memory.exists()
        parent.kill()
        parent.wait()
    until(lambda: not memory.exists(), seconds=10)
