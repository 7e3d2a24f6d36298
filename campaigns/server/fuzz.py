"""A server that is sent what nobody should send: no failure, no hang, no growth.

    python -m campaigns.server.fuzz --requests 20000

Half of the requests are schemathesis', made from the server's own OpenAPI document; the other half are bytes
from fuzz_bodies.py, over plain sockets.
"""

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from campaigns.server.fuzz_bodies import RawRequest, RequestMaker
from campaigns.server.fuzz_document import press_operations
from tests.server.process import ServerProcess, resident_bytes, serving
from tests.tiny import write_checkpoint

PATIENCE = 10.0
"""Seconds within which everything is answered."""
LIMITS: dict[str, Any] = {"served_model_name": "tiny", "max_n": 3, "max_prompts": 4, "tool_format": "hermes"}
_SAMPLES = 40
_LARGE = 60_000
"""A refusal may be lost where the server closes while so much is still being sent."""


@dataclass(slots=True)
class Found:
    measure: Callable[[], int]
    """The memory of server and engine."""
    every: int
    """Answers from one measurement to the next."""
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0
    memory: list[int] = field(default_factory=list)

    def note(self, answer: bytes, seconds: float, request: RawRequest) -> None:
        """One answer off the wire; none at all is right where the request was not whole."""
        sent = request.data
        self.slowest = max(self.slowest, seconds)
        head, _, body = answer.partition(b"\r\n\r\n")
        status = head.split(b" ")[1].decode() if head.startswith(b"HTTP/1.1 ") else "none"
        self.note_status(status)
        if status == "none" and request.is_whole and len(sent) < _LARGE:
            self.faults.append(f"no answer to {shown(sent)}")
        if status >= "500" and status != "none":
            self.faults.append(f"{status} {body[:200]!r} to {shown(sent)}")
        if b"application/json" in head and status >= "400" and not _is_error(body):
            self.faults.append(f"{status} without an error's shape {body[:200]!r} to {shown(sent)}")

    def note_status(self, status: int | str) -> None:
        self.statuses[str(status)] += 1
        if self.statuses.total() % self.every == 0:
            with suppress(OSError):  # It may have ended, which is found elsewhere.
                self.memory.append(self.measure())

    @property
    def growth(self) -> float:
        """Of the memory, from the second quarter of all answers to the last."""
        quarter = max(1, len(self.memory) // 4)
        before = self.memory[quarter : 2 * quarter] or self.memory[:1]
        return statistics.median(self.memory[-quarter:]) / statistics.median(before) - 1

    def __str__(self) -> str:
        return "\n".join(
            (
                f"answers by status: {dict(self.statuses)}; slowest {self.slowest:.2f} s",
                f"memory grew by {self.growth:.1%}, to {self.memory[-1] / 1e6:.0f} MB",
                f"{len(self.faults)} faults",
                *(f"  {each[:3000]}" for each in self.faults[:20]),
            )
        )


def _is_error(body: bytes) -> bool:
    try:
        return set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return not body  # HEAD has no body.


def shown(sent: bytes) -> str:
    return repr(sent if len(sent) < 500 else sent[:350] + b" ... " + sent[-150:])


def exchange(url: str, request: RawRequest) -> bytes:
    """What comes back until the server closes; the request asks it to."""
    parts = urlsplit(url)
    received = []
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as line:
        try:
            line.sendall(request.data)
            if not request.is_whole:
                line.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise
        except OSError:
            pass  # It may refuse a request before it has all of it.
        try:
            while piece := line.recv(1 << 16):
                received.append(piece)
        except ConnectionResetError:
            pass
    return b"".join(received).removeprefix(b"HTTP/1.1 100 \r\n\r\n")


def press_bytes(server: ServerProcess, count: int, seed: int, found: Found) -> None:
    maker = RequestMaker(seed)
    for _ in range(count):
        request = maker.request()
        sent, started = request.data, time.monotonic()
        try:
            answer = exchange(server.url, request)
            found.note(answer, time.monotonic() - started, request)
        except TimeoutError:
            found.faults.append(f"no answer within {PATIENCE} s to {shown(sent)}")
        except ConnectionRefusedError:
            found.faults.append(f"the server is gone after {shown(sent)}")
            return


def fuzz(server: ServerProcess, requests: int, seed: int = 0) -> Found:
    found = Found(
        measure=lambda: sum(map(resident_bytes, (server.process.pid, *server.children))),
        every=max(1, requests // _SAMPLES),
    )
    press_bytes(server, requests // 2, seed, found)
    if server.process.poll() is None:
        found.faults += press_operations(server.url, requests // 2, seed, PATIENCE, found.note_status)
    _check_after(server, found)
    return found


def _check_after(server: ServerProcess, found: Found) -> None:
    if server.process.poll() is not None:
        found.faults.append(f"the server ended with {server.process.returncode}")
        return
    server.until_idle()
    answer = server.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
    if answer.status_code != 200 or server.http.get("/health").status_code != 200:
        found.faults.append(f"afterwards it says {answer.text}")
    logged = [line for line in server.log if line["level"] in ("error", "critical")]
    found.faults += [f"logged: {json.dumps(line)[-3000:]}" for line in logged]


@contextmanager
def fuzzed_server(folder: Path) -> Iterator[ServerProcess]:
    model = write_checkpoint("llama3", folder / "model")
    with serving(model, folder / "log", LIMITS, max_model_len=96, num_blocks=200) as server:
        yield server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, fuzzed_server(Path(folder)) as server:
        found = fuzz(server, given.requests, given.seed)
    if found.growth > 0.1:
        found.faults.append(f"memory grew by {found.growth:.1%}")
    print(found)
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
