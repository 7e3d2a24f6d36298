"""Workers that wait are stopped: real processes that spin, and what is left of them."""

import dataclasses
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers.idle import idle_cores
from benchmarks.peers.process import Worker, WorkerPlan
from benchmarks.peers.registry import endpoint
from tests.alive import is_alive

SPINNING = """
import subprocess, sys, threading

def spin():
    while True:
        pass

def load(job):
    threading.Thread(target=spin, daemon=True).start()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def generate(case, prompt, max_tokens, note):
        if case == "fails":
            raise ValueError("it cannot")
        for token in prompt:
            note([token])
        return {"child": child.pid}

    return generate
"""
KILLED = """
import os, pickle, signal, sys
from pathlib import Path
from benchmarks.peers.process import Worker

plan = pickle.loads(Path(sys.argv[1]).read_bytes())
worker = Worker(plan, Path(sys.argv[2])).__enter__()
print(worker.pid, worker.ask("any", [1, 2], 2)["child"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def plan(tmp_path: Path) -> WorkerPlan:
    """Of a peer that uses two cores, and a process it started, whether or not it is asked."""
    file = tmp_path / "spinning.py"
    file.write_text(SPINNING)
    peer = dataclasses.replace(endpoint("spinning"), worker=str(file))
    return WorkerPlan(
        peer=peer,
        cases=["any"],
        python=Path(sys.executable),
        job={"cores": [], "packages": []},
        num_bytes=0,
    )


def is_soon_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_who_waits_takes_no_cores_and_answers_again(plan: WorkerPlan, tmp_path: Path) -> None:
    awake = dataclasses.replace(plan, peer=dataclasses.replace(plan.peer, is_stopped_while_idle=False))
    with Worker(plan, tmp_path / "log") as stopped, Worker(awake, tmp_path / "log") as other:
        used = idle_cores({"just loaded": stopped.pid, "never stopped": other.pid})
        # On a busy machine nobody gets whole cores: only the one that is stopped gets none.
        assert used["just loaded"] < used["never stopped"] / 10
        assert stopped.ask("any", [7, 8], 2)["tokens"] == [7, 8]
        used = idle_cores({"asked": stopped.pid, "never stopped": other.pid})
        assert used["asked"] < used["never stopped"] / 10
        assert stopped.ask("any", [9], 1)["tokens"] == [9]


def test_nobody_stopped_is_left_behind(plan: WorkerPlan, tmp_path: Path) -> None:
    with Worker(plan, tmp_path / "log") as worker:
        child = worker.ask("any", [7], 1)["child"]
        assert is_alive(child)
    # It was continued and heard the end, rather than being killed after a long wait.
    assert worker._process.returncode == 0
    assert is_soon_gone(worker.pid)
    assert is_soon_gone(child)
    worker.close()  # A second time there is nobody to hurt.


def test_a_worker_ends_with_a_run_that_is_killed_while_it_is_stopped(
    plan: WorkerPlan, tmp_path: Path
) -> None:
    kept = tmp_path / "plan"
    kept.write_bytes(pickle.dumps(plan))
    command = [sys.executable, "-c", KILLED, str(kept), str(tmp_path / "log")]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -9, killed.stderr
    worker, child = map(int, killed.stdout.split())
    try:
        assert is_soon_gone(worker)
    finally:
        for pid in filter(is_alive, (worker, child)):
            os.kill(pid, 9)
