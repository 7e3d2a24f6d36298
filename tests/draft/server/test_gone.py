"""Of a target that is gone nothing is left after 10 seconds: killed, or at the end of a line that is cut."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.ruled import RuledModel, hello, scheduler_of
from ssd.config.draft import DraftConfig
from ssd.config.schema import fields_of
from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import HEARTBEAT_SECONDS
from ssd.draft.protocol.sockets import Keys, ZmqDraftSocket, make_keys
from ssd.draft.server.server import DraftServer
from ssd.integrations.vllm.settings import Settings
from tests.draft.crowd import Crowd, Spoke

_FOLLOWING = """
import sys, time
from pathlib import Path
from ssd.draft.client.client import DraftClient
from ssd.draft.protocol.sockets import Keys
from ssd.draft.protocol.messages import PROTOCOL_VERSION, Hello, Sampling
from ssd.draft.client.connection import sources_at
hello = Hello(PROTOCOL_VERSION, "a rule", 400, "target", sys.argv[3], 4096)
client = DraftClient(sources_at(sys.argv[1], hello, timeout=60.0, keys=Keys(Path(sys.argv[2]))), lookahead=4)
client.pool.wait_until_ready(60.0)
for key in range(3):
    client.follow(key, [5, 6, 7], 3, Sampling(seed=1), 3000)
while True:
    client.pool.read(0.1)
"""


class Relay:
    """Between a target and a draft, until it is cut: then both ends stay as they are, and nothing comes."""

    def __init__(self, port: int) -> None:
        self._port, self._is_cut = port, False
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._open = [self._socket]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True

    def close(self) -> None:
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while (said := source.recv(65536)) and not self._is_cut:
                sink.sendall(said)
            while self._is_cut:
                time.sleep(0.1)


@dataclass
class Hall:
    """A draft with real sockets, and processes that use it."""

    keys: Path
    targets: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.link = ZmqDraftSocket("tcp://127.0.0.1:0", Keys(self.keys / "draft"))
        self.port = int(bytes(self.link._socket.last_endpoint).decode().rpartition(":")[2])  # type: ignore[arg-type]
        self.scheduler = scheduler_of(RuledModel(), prefill_chunk=128)
        self.service = DraftServer(self.scheduler, self.link, hello("draft"))

    def target(self, port: int, name: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-c",
            _FOLLOWING,
            f"tcp://127.0.0.1:{port}",
            str(self.keys / "engine"),
            name,
        ]
        self.targets.append(subprocess.Popen(command))
        return self.targets[-1]

    def until(self, condition: Callable[[], bool], patience: float) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            self.service.turn(0.05)


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    make_keys(tmp_path)
    hall = Hall(tmp_path)
    yield hall
    for each in hall.targets:
        each.kill()
        each.wait()
    hall.link.close()


def test_sessions_of_who_is_killed_or_cut_off_are_gone_within_ten_seconds(hall: Hall) -> None:
    relay = Relay(hall.port)
    killed, _cut_off, _well = (
        hall.target(port, name)
        for port, name in ((hall.port, "killed"), (relay.port, "cut off"), (hall.port, "well"))
    )
    hall.until(lambda: hall.scheduler.num_sessions == 9, 60.0)
    killed.send_signal(signal.SIGKILL)
    relay.cut()
    hall.until(lambda: hall.scheduler.num_sessions == 3, 10.0)
    hall.service.check_integrity()
    [tenant] = {each.tenant for each in hall.scheduler._sessions.values()}
    assert tenant == "target well"
    relay.close()


def test_a_peer_that_sends_nonsense_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd()
    peer = Spoke(crowd.hub, b"hostile", "its key")
    for _ in range(150):
        peer.send(b"nonsense")
        crowd.service.turn(0.0)
        crowd.now += 0.1
    said = [each.getMessage() for each in caplog.records if "cannot be decoded" in each.getMessage()]
    assert [int(each.split()[1]) for each in said] == [1, pytest.approx(100, abs=1)]


def test_no_setting_makes_a_target_leave_a_draft_that_is_idle() -> None:
    """A draft that computes a step may be late with its sign of life."""
    fields = fields_of(DraftConfig)["timeout"], fields_of(Settings)["draft_timeout"]
    assert all((field.about.least or 0) >= HEARTBEAT_SECONDS + 1 for field in fields)


def test_signs_of_life_are_spread_over_the_interval() -> None:
    """Peers that came at once were all written to in one turn, every 2 s."""
    crowd = Crowd()
    names = [f"{number}".encode() for number in range(200)]
    for name in names:
        Spoke(crowd.hub, name, "ours").send(encode([hello("a target")]))
    crowd.service.turn(0.0)
    heard, counts = dict.fromkeys(names, 0.0), list[int]()
    for _ in range(600):
        crowd.now += 0.01
        crowd.service.turn(0.0)
        now = [name for name in names if crowd.hub.outboxes[name]]
        for name in now:
            crowd.hub.outboxes[name].clear()
            assert crowd.now - heard[name] <= HEARTBEAT_SECONDS + 0.01
            heard[name] = crowd.now
        counts.append(len(now))
    assert max(counts[1:]) <= 4
    assert sum(counts[1:]) <= 200 * 6
