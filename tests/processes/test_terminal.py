"""What a model writes does nothing to a terminal."""

import sys

import pytest

from ssd.processes.terminal import escaped, for_terminal


def test_control_characters_are_shown() -> None:
    assert escaped("a\x1b]0;title\x07b\x9b2J\r\n\tü🙂") == "a\\x1b]0;title\\x07b\\x9b2J\\x0d\n\tü🙂"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_elsewhere_the_text_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert (for_terminal("\x1b[31m") == "\x1b[31m") is not is_terminal
