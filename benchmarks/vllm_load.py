"""A server of OpenAI's API as a child process, and a closed loop of clients that stream texts from it.

Only tokens that come within the window are counted, so a text that is under way at its end counts in part.
"""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec

_LOOK_SECONDS, _END_SECONDS, _ANSWER_SECONDS = 0.5, 50.0, 30.0
_WARM_UP = 0.2
"""Share of the window before it, in which tokens are not counted."""
_COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a server gave under a load."""

    tokens: int
    seconds: float
    first_token: float
    """Median seconds to the first token of a text."""
    drafts: float
    accepted: float
    """Verifications of drafted tokens, and how many of these were accepted, as vLLM counts."""
    texts: Mapping[int, str]
    """By number of the prompt, what the first client's texts were."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_a_verification(self) -> float:
        return 1 + self.accepted / self.drafts if self.drafts else 1.0


class Server:
    """`with Server(command, logs, name) as server: server.wait(…)`; it is ended on leaving."""

    def __init__(self, command: Sequence[str], logs: Path, name: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = list(command).index("--")
        self._command = [*command[:place], "--port", str(port), *command[place:]]
        self.url = f"http://127.0.0.1:{port}"
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / f"{name.replace(' ', '-')}.log"

    def __enter__(self) -> "Server":
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            # All that it has started reads the end of its standard input, and ends.
            self._process.kill()
            self._process.wait()

    def wait(self, seconds: float, *, for_draft: bool) -> None:
        """Until it answers, and our draft is connected; RuntimeError if that does not happen in time."""
        deadline = time.monotonic() + seconds
        while not (self._answers() and (not for_draft or self.counter("ssd_draft_up") >= 1)):
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended with code {self._process.returncode}: see {self._log}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"it was not ready within {seconds:.0f} s: see {self._log}")
            time.sleep(_LOOK_SECONDS)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, URLError):
            return False

    def counter(self, name: str) -> float:
        """Sum of a metric over its labels."""
        with urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        mine = (line for line in lines if line.split("{")[0].split(" ")[0] == name)
        return sum(float(line.rpartition(" ")[2]) for line in mine)

    def stream(self, **asked: Any) -> Iterator[tuple[int, str]]:
        """Pieces of a text as they come: how many tokens there are by now, and the new text."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = json.dumps({**asked, "stream": True, "stream_options": options}).encode()
        request = Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    piece = json.loads(line[6:])
                    text = "".join(choice["text"] for choice in piece["choices"])
                    yield piece["usage"]["completion_tokens"], text

    @property
    def model(self) -> str:
        with urlopen(f"{self.url}/v1/models", timeout=30) as answer:
            return str(json.loads(answer.read())["data"][0]["id"])


class _Clients:
    """Each asks for one text after another until the window ends."""

    def __init__(
        self, server: Server, prompts: Sequence[str], asked: Mapping[str, Any], seconds: float
    ) -> None:
        self._server, self._prompts, self._asked = server, prompts, asked
        self._starts = time.monotonic() + _WARM_UP * seconds
        self._ends = self._starts + seconds
        self._lock = threading.Lock()
        self._next = 0
        self.tokens = 0
        self.first_tokens: list[float] = []
        self.texts: dict[int, str] = {}
        self.errors: list[Exception] = []

    def run(self) -> None:
        try:
            while time.monotonic() < self._ends:
                self._text()
        except Exception as error:  # In a thread: the caller raises it.
            self.errors.append(error)

    def _text(self) -> None:
        with self._lock:
            number, self._next = self._next, self._next + 1
        began, seen, written = time.monotonic(), 0, ""
        prompt = self._prompts[number % len(self._prompts)]
        for count, text in self._server.stream(prompt=prompt, **self._asked):
            now, written = time.monotonic(), written + text
            with self._lock:
                if not seen:
                    self.first_tokens.append(now - began)
                if self._starts <= now < self._ends:
                    self.tokens += count - seen
                if number < len(self._prompts):
                    self.texts[number] = written
            seen = count
            if now >= self._ends:
                return


def measured(
    server: Server, prompts: Sequence[str], *, temperature: float, batch: int, seconds: float, max_tokens: int
) -> Load:
    before = {name: server.counter(counter) for name, counter in _COUNTERS.items()}
    asked = {
        "model": server.model,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    clients = _Clients(server, prompts, asked, seconds)
    threads = [threading.Thread(target=clients.run, daemon=True) for _ in range(batch)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if clients.errors or not clients.first_tokens:
        raise RuntimeError(f"a text failed: {clients.errors[:1] or 'no token came'}")
    counted = {name: server.counter(counter) - before[name] for name, counter in _COUNTERS.items()}
    firsts = sorted(clients.first_tokens)
    return Load(
        tokens=clients.tokens,
        seconds=seconds,
        first_token=firsts[len(firsts) // 2],
        texts=clients.texts if batch == 1 and not temperature else {},
        **counted,
    )
