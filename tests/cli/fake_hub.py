"""A small Hugging Face hub on a real socket: one model it serves, one that is gated, nothing else."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

COMMIT = "a" * 40


class FakeHub(ThreadingHTTPServer):
    """Serves `folder` as tiny/model, and says that tiny/gated is gated."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answers)
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub
    _ERRORS: ClassVar = {"RepoNotFound": 404, "GatedRepo": 403, "RevisionNotFound": 404, "EntryNotFound": 404}

    def do_GET(self) -> None:
        path = self.path.split("?")[0].strip("/")
        self.server.asked.append(path)
        parts = path.removeprefix("api/models/").split("/")
        repo, rest = "/".join(parts[:2]), parts[2:]
        if repo == "tiny/gated":
            self._fail("GatedRepo")
        elif repo != "tiny/model":
            self._fail("RepoNotFound")
        elif rest[:1] != ["resolve"] and rest[1:2] not in (["main"], [COMMIT]):
            self._fail("RevisionNotFound")
        elif rest[0] == "revision":
            self._json({"id": repo, "sha": COMMIT, "siblings": self._listing()})
        elif rest[0] == "tree":
            self._json(self._listing())
        else:
            self._file("/".join(rest[2:]))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _listing(self) -> list[dict[str, object]]:
        return [
            {
                "type": "file",
                "path": file.name,
                "rfilename": file.name,
                "size": file.stat().st_size,
                "oid": _digest(file),
            }
            for file in sorted(self.server.folder.iterdir())
        ]

    def _file(self, name: str) -> None:
        file = self.server.folder / name
        if not file.is_file():
            self._fail("EntryNotFound")
            return
        self._send(200, file.read_bytes(), {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": COMMIT})

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _fail(self, code: str) -> None:
        self._send(self._ERRORS[code], b"{}", {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
