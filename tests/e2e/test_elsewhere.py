"""Where there is no affinity, no /proc and no /sys, as on macOS: everything runs, and says what it cannot do.

They are hidden from processes of their own, and from what these start (elsewhere/sitecustomize.py).
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.alive import is_alive

HIDING = Path(__file__).parent / "elsewhere"
HIDDEN = """
import os
from pathlib import Path
assert not hasattr(os, "sched_setaffinity") and not hasattr(os, "sched_getaffinity")
assert not Path("/proc").exists() and not Path("/proc/self/status").is_file()
for place in ("/proc/cpuinfo", "/sys/devices/system/cpu/online"):
    try:
        open(place)
        raise AssertionError(place)
    except FileNotFoundError:
        pass
assert not list(Path("/sys/devices").glob("*")) and not list(Path("/proc/self/task").glob("*"))
"""
MODES = """
import sys
from ssd import LLM, SamplingParams

target, draft = sys.argv[1:]
params = SamplingParams(temperature=0.8, seed=5, max_tokens=24, ignore_eos=True)
found = {}
for mode in ("ar", "sd", "ssd"):
    drafting = {} if mode == "ar" else {"mode": mode, "draft": draft}
    with LLM(target, device="cpu", deterministic=True, show_progress=False, **drafting) as llm:
        output = llm.generate("The quick brown fox", params, use_tqdm=False)[0].outputs[0]
        found[mode] = output.token_ids
        assert mode != "sd" or output.speculation.drafted > 0
        if mode == "ssd":
            assert llm._engine.core.decoder.proposer.speculator.client.is_ready
            config = llm._engine.config
            assert not set(config.cores) & set(config.draft.cores)
            assert bool(config.draft.cores) == (os.cpu_count() > 1)
assert len(found["ar"]) == 24 and found["ar"] == found["sd"] == found["ssd"], found
"""
KILLED = """
import signal, sys
from ssd import LLM

llm = LLM(sys.argv[1], mode="ssd", draft=sys.argv[2], device="cpu", show_progress=False)
print(llm._engine.core.decoder.proposer.speculator.client.pool.replicas[0].source.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def elsewhere(*words: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, (str(HIDING), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_mode_writes_the_same(tiny_llama: Path, tiny_draft: str) -> None:
    done = elsewhere("-c", HIDDEN + MODES, str(tiny_llama), tiny_draft)
    assert done.returncode == 0, done.stderr
    if (os.cpu_count() or 1) > 1:
        said = [
            line for line in done.stderr.splitlines() if "this system cannot pin processes to cores" in line
        ]
        assert [" draft: " in line for line in sorted(said)] == [True, False], "each side, once"


def test_a_draft_ends_with_its_engine(tiny_llama: Path, tiny_draft: str) -> None:
    """By its lifeline: nothing of the system is asked for."""
    done = elsewhere("-c", HIDDEN + KILLED, str(tiny_llama), tiny_draft)
    assert done.stdout, done.stderr
    deadline = time.monotonic() + 20
    while is_alive(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(int(done.stdout))


def test_the_doctor_says_what_it_cannot_do(tmp_path: Path) -> None:
    done = elsewhere("-m", "ssd", "doctor", "--hf-cache", str(tmp_path))
    assert done.returncode == 0, done.stderr
    if (os.cpu_count() or 1) > 1:
        assert re.search(
            r"cores in mode ssd\s+│ \d+ of the target, \d+ of the draft: numbers of threads", done.stdout
        )
