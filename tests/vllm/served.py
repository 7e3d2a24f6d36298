"""`ssd serve --engine vllm` as a process: started, asked, watched, and what is left of it afterwards.

Knows processes, sockets and metrics. Does not know what is tested with it. Everything that a server makes
lies in a folder of its own (TMPDIR), so that what it leaves can be told from what others do.
"""

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx
import pytest

from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import PROTOCOL_VERSION, Hello
from ssd.draft.protocol.sockets import ZmqEngineSocket
from tests.alive import is_alive
from tests.server.process import ServerProcess, children_of, free_port, until

START_SECONDS = 400
KEY = "secret"
_SHARED = ("/dev/shm/psm_", "/dev/shm/sem.")
PROMPT = "The three largest cities of France are"


def smollm2() -> Path:
    """As a folder: vLLM reads no GGUF. The test is skipped where it, or vLLM, is missing."""
    found = Path(os.environ.get("SSD_TEST_MODELS", ".")) / "folders" / "smollm2"
    if not (found / "config.json").exists():
        pytest.skip("no folder of SmolLM2: make folders/smollm2 in SSD_TEST_MODELS")
    try:
        version("vllm")
    except PackageNotFoundError:
        pytest.skip("vLLM is not installed as a package `vllm`")
    return found


class Served(ServerProcess):
    """As our own server, without what only that one tells."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, log: Path, temporary: Path) -> None:
        super().__init__(process, f"http://127.0.0.1:{port}", log, KEY)
        self._port, self._temporary = port, temporary
        self.seen: set[int] = set()
        """Processes that it was seen to have started."""
        self._memory: set[Path] = set()

    @property
    def said(self) -> str:
        return self._log.read_text()

    def draft_pid(self) -> int:
        [pid] = [each for each in self.children if "--lifeline" in command_of(each)]
        return pid

    def engine_pids(self) -> list[int]:
        return [each for each in self.children if "EngineCore" in command_of(each)]

    def await_draft(self, seconds: float) -> bool:
        """Until the draft answers, by its own word: to one whom it refuses, and keeps nothing of."""
        [folder] = self._temporary.glob("ssd-*")
        stranger = Hello(PROTOCOL_VERSION, "no tokenizer", 1, "a test", "none")
        link = ZmqEngineSocket(f"ipc://{folder}/draft.sock")
        try:
            link.send(encode([stranger]))
            return link.receive(seconds) is not None
        finally:
            link.close()

    def look(self) -> None:
        self.seen.update(children_of(self.process.pid))

    def look_at_memory(self) -> None:
        """Which shared memory its processes have."""
        for pid in self.children:
            with contextlib.suppress(OSError):
                mapped = Path(f"/proc/{pid}/maps").read_text().split()
                self._memory.update(Path(each) for each in mapped if each.startswith(_SHARED))

    def left(self) -> list[str]:
        """What is still there of a server that has ended, in words."""
        pids = [each for each in self.seen | _inheritors(self._temporary) if is_alive(each)]
        bound = [line for line in Path("/proc/net/unix").read_text().splitlines() if self._is_ours(line)]
        files = [each for each in self._temporary.rglob("*") if each.is_socket()]
        folders = list(self._temporary.glob("ssd-*"))
        return [
            *(f"process {pid}: {command_of(pid)}" for pid in pids),
            *(f"socket {line}" for line in bound),
            *(f"socket {file}" for file in files),
            *(f"folder {folder}" for folder in folders),
            *(f"shared memory {each}" for each in self._memory if each.exists()),
            *([f"port {self._port}"] if _is_open(self._port) else []),
        ]

    def until_nothing_is_left(self, seconds: float = 30) -> list[str]:
        """Empty, or what was there to the last."""
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _is_ours(self, line: str) -> bool:
        return str(self._temporary) in line


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def _inheritors(temporary: Path) -> set[int]:
    """Processes with this TMPDIR, whoever their parents were."""
    found, variable = set(), f"TMPDIR={temporary}\0".encode()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                if variable in (each / "environ").read_bytes() + b"\0":
                    found.add(int(each.name))
    return found


def _is_open(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def readme_command(target: Path, draft: Path | str) -> list[str]:
    """README's command for vLLM with these models, and with nothing else."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    lines = [shlex.split(line, comments=True) for line in readme.splitlines() if line.startswith("ssd serve")]
    [found] = [words for words in lines if "vllm" in words and "--print-commands" not in words]
    _ssd, _serve, its_target, *options = found
    its_draft = options[options.index("--draft") + 1]
    models = {its_target: str(target), its_draft: str(draft)}
    return [sys.executable, "-m", *(models.get(word, word) for word in found)]


def command(words: Sequence[str], port: int, flags: Sequence[str], own: Sequence[str] = ()) -> list[str]:
    """`words`: what the command begins with; `flags`: more of `ssd serve`; `own`: of vLLM.

    Memory is left to the command, as a user would leave it.
    """
    return [
        *(*words, *flags, "--port", str(port), "--served-model-name", "served", "--dtype", "float32"),
        *("--max-model-len", "1024", "--max-num-seqs", "8"),
        *("--api-key", KEY, "--drain-seconds", "5", "--", "--enforce-eager", *own),
    ]


def start(place: Path, target: Path, draft: Path | str, *flags: str, own: Sequence[str] = ()) -> Served:
    """Log and temporary files lie in `place`, which is new; `own`: flags of vLLM."""
    port = free_port()
    process, temporary = begin(place, command(readme_command(target, draft), port, flags, own))
    return Served(process, port, place / "log", temporary)


def begin(place: Path, words: Sequence[str], **variables: str) -> tuple["subprocess.Popen[str]", Path]:
    """The process, and the folder of its temporary files."""
    temporary = place / "tmp"
    temporary.mkdir(parents=True)
    # vLLM compiles what it needs for the first logprobs, which takes as long as half a start.
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "TMPDIR": str(temporary), **variables}
    with (place / "log").open("w") as sink:
        process = subprocess.Popen(words, stdout=sink, stderr=sink, text=True, env=environment)
    return process, temporary


@contextlib.contextmanager
def serving(place: Path, target: Path, draft: Path, *, own: Sequence[str] = ()) -> Iterator[Served]:
    """A server that is ready, its draft too; it ends well, and leaves nothing. `own`: flags of vLLM."""
    server = start(place, target, draft, own=own)
    try:
        until_ready(server)
        yield server
    finally:
        server.look()
        server.look_at_memory()
        code = server.end()
    left = server.until_nothing_is_left()
    assert code == 0, server.said
    assert not left, left
    assert KEY not in server.said


def until_ready(server: Served) -> None:
    until_healthy(server)
    until(lambda: has_draft(server), seconds=120)


def until_healthy(server: Served) -> None:
    until(lambda: is_healthy(server) or server.process.poll() is not None, seconds=START_SECONDS)
    assert server.process.poll() is None, server.said


def is_healthy(server: Served) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return server.http.get("/health").status_code == 200
    return False


def has_draft(server: ServerProcess) -> bool:
    """By the worker's own word, which it renews with every step."""
    ask(server, max_tokens=2)
    return server.counted("ssd_draft_up") == 1


def ask(server: ServerProcess, **more: Any) -> Any:
    usual = {"model": "served", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    return server.openai.completions.create(**{**usual, **more})
