"""A real server process on a real socket, for tests that talk to it over HTTP."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai

from ssd.config import EngineConfig
from ssd.config.server import ServerConfig
from tests.alive import is_alive

_PROGRAM = """
import sys
import msgspec
from ssd.config import EngineConfig
from ssd.config.server import ServerConfig
from ssd.server.run import run_server
sys.exit(run_server(*msgspec.json.decode(sys.argv[1], type=tuple[EngineConfig, ServerConfig])))
"""
DEFAULTS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "deterministic": True}


class ServerProcess:
    def __init__(self, process: "subprocess.Popen[str]", url: str, log: Path, key: str | None) -> None:
        self.process, self.url, self._log = process, url, log
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, timeout=60, headers=headers)
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key or "none", max_retries=0, timeout=120)

    @property
    def children(self) -> list[int]:
        return children_of(self.process.pid)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Whatever server, engine and draft have written: each line is an object, or this fails."""
        *whole, _begun = self._log.read_text().split("\n")
        lines = [json.loads(line) for line in whole]
        assert all(isinstance(line, dict) for line in lines)
        return lines

    def metric(self, name: str) -> float:
        """The value of a line of /metrics, with its labels as they stand there."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.rpartition(" ")[0] == name:
                return float(line.rpartition(" ")[2])
        raise KeyError(name)

    def counted(self, name: str, **labels: str) -> float:
        """The sum of a counter over all its lines with these labels."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{label}="{value}"' in line for label, value in labels.items()
            ):
                total += float(line.rpartition(" ")[2])
        return total

    def until_idle(self) -> None:
        until(lambda: self.metric("ssd_kv_cache_usage_perc") == 0 and self.num_at_work == 0)

    @property
    def num_at_work(self) -> float:
        return self.metric("ssd_num_requests_running") + self.metric("ssd_num_requests_waiting")

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextlib.contextmanager
def serving(
    model: Path, log: Path, server: dict[str, Any] | None = None, *, wait: bool = True, **engine: Any
) -> Iterator[ServerProcess]:
    port = free_port()
    engine_config = EngineConfig.from_settings(str(model), {**DEFAULTS, **engine})
    server_config = ServerConfig(**{"port": port, "drain_seconds": 5.0, **(server or {})})
    settings = msgspec.json.encode([engine_config, server_config])
    with log.open("w") as sink:
        process = subprocess.Popen([sys.executable, "-c", _PROGRAM, settings], stderr=sink, text=True)
    keys = server_config.api_keys
    found = ServerProcess(process, f"http://127.0.0.1:{port}", log, keys[0] if keys else None)
    try:
        if wait:
            until(lambda: is_ready(found) or process.poll() is not None, seconds=300)
            assert process.poll() is None, log.read_text()
        yield found
    finally:
        pids = found.children
        found.end()
        until(lambda: not any(map(is_alive, pids)))


def is_ready(server: ServerProcess) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return server.http.get("/ready").status_code == 200
    return False


def until(condition: Callable[[], bool], seconds: float = 60, *, what: str = "it") -> None:
    """A machine may stand still for longer than that: there is always a look after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() > deadline
        if condition():
            return
        assert not is_last, f"{what} did not happen in time"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def children_of(pid: int) -> list[int]:
    """All descendants: the engine, its draft."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    found += [int(each.name), *children_of(int(each.name))]
    return found


def resident_bytes(pid: int) -> int:
    pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    """What a process has computed so far, whoever else computes beside it."""
    ticks = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
