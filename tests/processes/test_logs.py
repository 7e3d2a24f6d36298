"""Logs: text for whoever sits at a terminal, JSON for files and collectors; the same for server and draft."""

import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

from ssd.processes.logs import TextFormatter

_PROGRAM = """
import logging
from ssd.processes.logs import start_log, usual_format
start_log("draft", "info", usual_format())
logging.getLogger("a").info("hello", extra={"fields": {"status": 200}})
"""


def through_a_pipe() -> str:
    return subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stderr


def on_a_terminal() -> str:
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", _PROGRAM], stderr=theirs, check=True)
        return os.read(ours, 4096).decode().strip()
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(("run", "is_json"), [(through_a_pipe, True), (on_a_terminal, False)])
def test_the_usual_format_follows_the_terminal(run: Callable[[], str], is_json: bool) -> None:
    said = run()
    if is_json:
        entry = json.loads(said)
        assert (entry["message"], entry["process"], entry["status"]) == ("hello", "draft", 200)
    else:
        assert said.endswith("draft: hello status=200")


def test_text_names_what_is_grave() -> None:
    record = logging.LogRecord("a", logging.ERROR, "file", 1, "lost %s", ("it",), None)
    assert TextFormatter("engine").format(record).endswith("engine: error: lost it")


def test_what_callers_send_neither_moves_the_cursor_nor_forges_a_line() -> None:
    path = "/a\x1b[2J\r\n12:00:01 server: ready"
    record = logging.LogRecord("a", logging.INFO, "file", 1, "asked for %s", (path,), None)
    record.fields = {"path": path}
    first, *others = TextFormatter("server").format(record).split("\n")
    assert first.endswith("server: asked for /a\\x1b[2J\\x0d")
    assert others == ["    12:00:01 server: ready path=/a\\x1b[2J\\x0d", "    12:00:01 server: ready"]
