"""Waits: a plain line where no spinner can be shown; a long name leaves the spinner on its line."""

import re
import sys
import threading

import pexpect
import pytest

from ssd.cli import progress
from ssd.cli.progress import PlainWaits, after_wait, loading, waiting


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> "LineLog":
    log = LineLog()
    monkeypatch.setattr("typer.echo", log.add)
    monkeypatch.setattr(progress, "_LONG", 0.0)
    return log


class LineLog:
    def __init__(self) -> None:
        self.lines: list[tuple[str, bool]] = []
        self._news = threading.Condition()

    def add(self, line: str, *, err: bool) -> None:
        with self._news:
            self.lines.append((line, err))
            self._news.notify_all()

    def wait_for(self, count: int) -> list[tuple[str, bool]]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.lines) >= count, 60)
        return self.lines


def test_each_long_wait_has_a_plain_line_on_standard_error(lines: LineLog) -> None:
    with loading("model", then="starting") as make:
        lines.wait_for(1)
        assert not isinstance(make, bool)
        bar = make("loading weights", 2)
        lines.wait_for(2)
        bar.update(1)
        bar.close()
        lines.wait_for(3)
    with waiting("reading\x1b[2J"):
        found = lines.wait_for(4)
    texts = ("opening model", "loading weights", "starting", "reading\\x1b[2J")
    assert found == [(f"ssd: {text} …", True) for text in texts]


def test_a_short_wait_is_silent(monkeypatch: pytest.MonkeyPatch, lines: LineLog) -> None:
    monkeypatch.setattr(progress, "_LONG", 3600.0)
    waits = PlainWaits("short")
    waits.end()
    assert not waits._timer.is_alive() or waits._timer.finished.is_set()
    assert list(after_wait(iter([1, 2]), "none")) == [1, 2]
    assert lines.lines == []


_LOADING = """
import time
from ssd.cli.progress import loading
with loading("m", then="starting the draft " + "long/" * 60) as make:
    make("loading", 1).close()
    time.sleep(0.5)
"""


def test_a_long_name_leaves_the_spinner_and_the_time_on_the_line() -> None:
    terminal = pexpect.spawn(
        sys.executable, ["-c", _LOADING], dimensions=(24, 80), encoding="utf-8", timeout=60
    )
    terminal.expect(pexpect.EOF)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.before)
    waits = [line for line in re.split(r"[\r\n]+", shown) if "starting the draft" in line]
    assert waits
    assert all(re.match(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] starting .*… .*0:00:0\d$", line.strip()) for line in waits), waits
