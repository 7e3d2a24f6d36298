"""A small server of OpenAI's chat protocol on a real socket: it says what it is told to say."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

Chunk = tuple[str, Sequence[str]]
"""Text, and the origins of its tokens."""


@dataclass
class Script:
    chunks: Sequence[Chunk] = (("Hello", ["target"]), (" there", ["hit", "hit"]), ("!", ["backup"]))
    trees: Sequence[dict[str, Any]] = ()
    """What was verified; told with the first chunk."""
    pause: float = 0.0
    """Seconds between chunks."""
    api_key: str | None = None
    tells_usage: bool = True
    decoding: dict[str, Any] = field(default_factory=lambda: {"mode": "ssd", "draft": "small-parrot"})
    speculation: dict[str, Any] = field(
        default_factory=lambda: {
            "rounds": 2,
            "accepted": 3,
            "hits": 1,
            "misses": {"late": 0, "unknown": 1, "unheard": 0},
            "accepted_per_round": 1.5,
            "hit_rate": 0.5,
        }
    )


class FakeOpenAI(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, page: Path | None = None) -> None:
        self.script, self.page = Script(), page
        self.requests: list[dict[str, Any]] = []
        self.hung_up = Event()
        """Somebody left before the end of an answer."""
        super().__init__(("127.0.0.1", 0), _Answers)
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: FakeOpenAI

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            model = {"id": "parrot", "object": "model", "decoding": self.server.script.decoding}
            self._json(200, {"object": "list", "data": [model]})
        elif self.path == "/" and self.server.page is not None:
            self._send(200, "text/html", self.server.page.read_bytes())
        else:
            self._refuse(404, f"no {self.path}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.server.script.api_key
        if key is not None and self.headers["Authorization"] != f"Bearer {key}":
            self._refuse(401, "wrong API key")
        elif body["messages"][-1]["content"] == "refuse":
            self._refuse(400, "the prompt is too long")
        else:
            self.server.requests.append(body)
            self._stream(
                tells_origins=body.get("return_origins", False), tells_trees=body.get("return_trees", False)
            )

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _stream(self, *, tells_origins: bool, tells_trees: bool) -> None:
        """As `ssd serve` does it: origins and trees are told to those who ask."""
        script = self.server.script
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for number, (text, origins) in enumerate(script.chunks):
                told: dict[str, Any] = {"origins": origins} if tells_origins else {}
                if tells_trees:
                    told["trees"] = [] if number else list(script.trees)
                self._event([{"index": 0, "delta": {"content": text}, **told}])
                time.sleep(script.pause)
            self._event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
            count = sum(len(origins) for _, origins in script.chunks)
            usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
            if script.tells_usage:
                self._event([], usage={**usage, "speculation": script.speculation})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.hung_up.set()

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> None:
        common = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "parrot"}
        self.wfile.write(b"data: " + json.dumps({**common, "choices": choices, **more}).encode() + b"\n\n")
        self.wfile.flush()

    def _refuse(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    def _json(self, status: int, content: object) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
