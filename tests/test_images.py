"""Images and the compose file: what they promise, read from them. No engine for containers is used.

Whether an image can be built is not known here.
"""

import json
import re
import runpy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ssd.cli.main import app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
IMAGES = sorted(DEPLOY.glob("Dockerfile.*"))
COMPOSE = DEPLOY / "compose.yaml"
HEALTH = DEPLOY / "health.py"


def instructions(image: Path) -> list[tuple[str, str]]:
    """Each with what follows it; comments gone, continued lines joined."""
    text = re.sub(r"^#.*\n", "", image.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word, " ".join(rest.split()))
        for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def last(image: Path, word: str) -> str:
    return [rest for found, rest in instructions(image) if found == word][-1]


def entrypoint(image: Path) -> list[str]:
    words: list[str] = json.loads(last(image, "ENTRYPOINT"))
    return words


def parse(words: list[str]) -> dict[str, Any]:
    """As the real command line takes it, without running anything."""
    assert words[0] == "ssd"
    group = typer.main.get_command(app)
    command = group.commands[words[1]]  # type: ignore[attr-defined]
    with command.make_context(words[1], words[2:]) as context:
        found: dict[str, Any] = context.params
        return found


def constraints() -> dict[str, str]:
    lines = [
        line for line in (DEPLOY / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", line) for line in lines), "each is one exact version"
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.suffix[1:])
class TestImage:
    def test_what_it_stands_on_is_pinned(self, image: Path) -> None:
        bases = [rest.partition(" ")[0] for word, rest in instructions(image) if word == "FROM"]
        assert all(re.search(r":v?\d+\.\d+\.\d+", base) for base in bases), bases
        installs = re.findall(
            r"pip install .*?(?=&&|$)", "\n".join(rest for _, rest in instructions(image)), re.MULTILINE
        )
        assert installs
        assert all("--constraint" in each for each in installs), installs

    def test_it_runs_as_a_user_without_rights_under_an_init(self, image: Path) -> None:
        assert last(image, "USER") not in ("root", "0")
        order = [word for word, _ in instructions(image)]
        assert "RUN" not in order[len(order) - order[::-1].index("USER") :]
        assert entrypoint(image)[:2] == ["tini", "--"]
        assert re.search(r"apt-get install [^&]*\btini\b", image.read_text())

    def test_its_command_is_one_that_there_is(self, image: Path) -> None:
        given = parse([*entrypoint(image)[2:], "MODEL", "--draft", "SMALL_MODEL"])
        assert given["host"] == "0.0.0.0"
        assert ("vllm" in given.values()) == (image.suffix == ".vllm")

    def test_health_is_asked_for_where_it_is_told(self, image: Path) -> None:
        command = json.loads(last(image, "HEALTHCHECK").partition("CMD ")[2])
        assert command[1:] == ["/opt/ssd/health.py", "/health" if image.suffix == ".vllm" else "/livez"]
        copied = [rest for word, rest in instructions(image) if word == "COPY"]
        assert any("deploy/health.py" in rest and rest.endswith("/opt/ssd/") for rest in copied)
        assert "SSD_LISTEN_PORT=8000" in last(image, "ENV")

    def test_it_copies_what_there_is(self, image: Path) -> None:
        for word, rest in instructions(image):
            if word == "COPY" and "--from" not in rest:
                assert [name for name in rest.split()[:-1] if not (ROOT / name).exists()] == []


def test_constraints_are_in_our_ranges_and_leave_none_out() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lines = [*project["project"]["dependencies"], *extras["server"], *extras["otel"]]
    lines += project["build-system"]["requires"]
    pinned = constraints()
    for each in map(Requirement, lines):
        version = pinned[canonicalize_name(each.name)]
        assert each.specifier.contains(version, prereleases=True), f"{each} against {version}"


def test_the_port_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSD_LISTEN_PORT", "8123")
    assert parse(["ssd", "serve", "MODEL"])["port"] == 8123
    assert parse(["ssd", "serve", "MODEL", "--port", "9000"])["port"] == 9000


@pytest.mark.parametrize(
    ("command", "environment", "expected"),
    [
        (["tini", "--", "ssd", "serve", "M"], {}, 8000),
        (["tini", "--", "ssd", "serve", "M"], {"SSD_LISTEN_PORT": "9000"}, 9000),
        (["tini", "--", "ssd", "serve", "M", "--port", "9001", ""], {"SSD_LISTEN_PORT": "9000"}, 9001),
        (["tini", "--", "ssd", "serve", "--port=9002", "M"], {}, 9002),
    ],
)
def test_health_finds_the_port_in_use(command: list[str], environment: dict[str, str], expected: int) -> None:
    assert runpy.run_path(str(HEALTH))["port"](command, environment) == expected


@contextmanager
def answering(status: int) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def health_of(port: int) -> int:
    run = subprocess.run(
        [sys.executable, str(HEALTH), "/livez"], env={"SSD_LISTEN_PORT": str(port)}, check=False, timeout=60
    )
    return run.returncode


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_health_is_the_servers(status: int, code: int) -> None:
    with answering(status) as port:
        assert health_of(port) == code


def test_where_nobody_listens_nobody_is_well() -> None:
    with answering(200) as port:
        pass
    assert health_of(port) == 1


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_the_compose_file_fits_its_schema(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace("stop_grace_period", "grace"))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    runs = [
        subprocess.run([*check, str(path)], capture_output=True, text=True, check=False)
        for path in (COMPOSE, broken)
    ]
    assert [run.returncode for run in runs] == [0, 1], runs[0].stdout


def test_target_and_draft_meet_on_one_socket() -> None:
    target, draft = services()["target"], services()["draft"]
    started = parse([*draft["entrypoint"][2:], *draft["command"]])
    serving = parse([*entrypoint(DEPLOY / "Dockerfile.cpu")[2:], *target["command"]])
    assert started["listen"] == serving["draft"] == "ipc:///run/ssd/draft.sock"
    assert started["model"] != serving["model_argument"]
    for each in (target, draft):
        assert "line:/run/ssd" in each["volumes"]
        assert each["build"]["dockerfile"] == "deploy/Dockerfile.cpu"
    assert draft["entrypoint"][:2] == ["tini", "--"]
    assert draft["healthcheck"]["test"][-1] == started["listen"].removeprefix("ipc://")


def test_the_target_is_published_to_this_machine_only() -> None:
    assert services()["target"]["ports"] == ["127.0.0.1:${SSD_PUBLISHED_PORT:-8000}:8000"]
    assert "ports" not in services()["draft"]
