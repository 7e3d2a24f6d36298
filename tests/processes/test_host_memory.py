"""Memory that this process may use: by /proc and cgroups that are made up, and by those of this machine."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssd.processes import child as child_module
from ssd.processes.child import Child
from ssd.processes.host_memory import HostMemory, available_on_node_of, count_oom_kills, host_memory
from tests.server.process import until

GIB = 1 << 30


def machine(root: Path, *, cgroups: str = "", **files: dict[str, object]) -> Path:
    """24 GiB, of which 20 are available; `files`: of a cgroup's folder, with __ for slashes."""
    write(root / "proc/meminfo", f"MemTotal: {24 << 20} kB\nMemAvailable: {20 << 20} kB\nHugePages_Total: 0")
    write(root / "proc/self/cgroup", cgroups)
    for folder, contents in files.items():
        for name, value in contents.items():
            write(
                root / "sys/fs/cgroup" / folder.replace("__", "/").strip("/") / f"memory.{name}", str(value)
            )
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_without_limits_it_is_the_systems(tmp_path: Path) -> None:
    assert host_memory(machine(tmp_path)) == HostMemory(24 * GIB, 20 * GIB)
    assert str(host_memory(tmp_path)) == "24.0 GiB, 20.0 GiB available"


def test_version_2_at_the_top_of_a_container(tmp_path: Path) -> None:
    """In a namespace of its own the path is /; what the kernel would give back does not count as used."""
    stat = f"anon {GIB}\nfile {GIB}\nactive_file {GIB // 4}\ninactive_file {GIB // 4}"
    top = {"max": 4 * GIB, "high": "max", "current": 2 * GIB, "stat": stat}
    found = host_memory(machine(tmp_path, cgroups="0::/", __=top))
    assert found == HostMemory(4 * GIB, int(2.5 * GIB), is_limited=True)
    assert str(found) == "4.0 GiB (the limit of its cgroup), 2.5 GiB available"


def test_version_2_nested_the_lowest_counts(tmp_path: Path) -> None:
    found = host_memory(
        machine(
            tmp_path,
            cgroups="0::/pod/box",
            pod={"max": 3 * GIB, "current": 2 * GIB},
            pod__box={"max": "max", "high": 5 * GIB, "current": GIB},
        )
    )
    assert found == HostMemory(3 * GIB, GIB, is_limited=True)


def test_where_it_is_slowed_is_a_limit_too(tmp_path: Path) -> None:
    found = host_memory(machine(tmp_path, cgroups="0::/", __={"max": 8 * GIB, "high": GIB, "current": 0}))
    assert found.total == GIB


def test_version_1_and_a_path_that_is_the_hosts(tmp_path: Path) -> None:
    """A container sees its own folder at the top of the mount, under another path than it is told."""
    unlimited = 9223372036854771712
    memory = {"limit_in_bytes": 2 * GIB, "usage_in_bytes": GIB, "stat": f"total_inactive_file {GIB // 2}"}
    told = "9:cpu:/\n4:memory,hugetlb:/docker/abc\n0::/"
    found = host_memory(machine(tmp_path, cgroups=told, memory=memory))
    assert found == HostMemory(2 * GIB, int(1.5 * GIB), is_limited=True)
    memory["limit_in_bytes"] = unlimited
    assert not host_memory(machine(tmp_path, cgroups=told, memory=memory)).is_limited


def test_a_group_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    found = host_memory(machine(tmp_path, cgroups="0::/", __={"max": GIB, "current": 2 * GIB}))
    assert found.available == 0


def test_a_limit_above_the_machines_own_is_none(tmp_path: Path) -> None:
    found = host_memory(machine(tmp_path, cgroups="0::/", __={"max": 99 * GIB, "current": 0}))
    assert found == HostMemory(24 * GIB, 20 * GIB)


def test_a_node_has_what_is_free_and_what_files_hold(tmp_path: Path) -> None:
    lines = ("MemTotal: 100", "MemFree: 20", "Active(file): 3", "Inactive(file): 4", "SReclaimable: 5")
    text = "\n".join(f"Node 1 {line} kB" for line in lines)
    write(tmp_path / "sys/devices/system/node/node1/meminfo", text)
    (tmp_path / "sys/devices/system/cpu/cpu7/node1").mkdir(parents=True)
    assert available_on_node_of(7, tmp_path) == 32 << 10
    assert available_on_node_of(0, tmp_path) is None


def test_this_machine_tells() -> None:
    found = host_memory()
    assert 0 < found.available <= found.total


@pytest.mark.parametrize(
    ("code", "kills", "words"),
    [
        (1, 0, "ended with code 1"),
        (1, 1, "ended with code 1"),
        (0, 1, "ended with code 0"),
        (137, 0, "ended with code 137: it was killed, by a user or because memory ran out"),
        (137, 1, "ended with code 137: out of memory, and the system killed it"),
    ],
)
def test_an_ending_says_whether_memory_ran_out(
    monkeypatch: pytest.MonkeyPatch, code: int, kills: int, words: str
) -> None:
    counts = iter([5, 5 + kills])
    monkeypatch.setattr(child_module, "count_oom_kills", lambda: next(counts, 5 + kills))
    child = Child([sys.executable, "-c", f"raise SystemExit({code})"], name="it")
    child.start()
    until(lambda: child.exit_code is not None)
    assert child.ending.startswith(words)
    assert (child.ending == words) == ("system" not in words)
    child.end()


@pytest.fixture
def limited() -> Iterator[Path]:
    """A real cgroup of 64 MiB; the test is skipped where none can be made."""
    mounts = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    folder = next((each for each in mounts if (each / "cgroup.procs").exists()), mounts[0])
    folder = folder / f"ssd-test-{os.getpid()}"
    # Without swap: else what is too much is swapped out, and nobody is killed.
    limits = {"memory.max": 64 << 20, "memory.swap.max": 0}
    if folder.parent.name == "memory":
        limits = dict.fromkeys(("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), 64 << 20)
    try:
        folder.mkdir()
        for name, value in limits.items():
            (folder / name).write_text(str(value))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    yield folder
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.05)


def test_a_real_limit_is_read_and_a_real_kill_is_named(limited: Path) -> None:
    enter = f"open('{limited}/cgroup.procs', 'w').write('0')"
    read = f"{enter}; from ssd.processes.host_memory import host_memory; print(host_memory().total)"
    told = subprocess.run([sys.executable, "-c", read], check=True, capture_output=True, text=True)
    assert int(told.stdout) == 64 << 20
    before = count_oom_kills()
    child = Child([sys.executable, "-c", f"{enter}; held = b'x' * (512 << 20)"], name="it")
    child.start()
    until(lambda: child.exit_code is not None)
    assert count_oom_kills() > before
    assert "ended with code -9: out of memory" in child.ending
    child.end()
