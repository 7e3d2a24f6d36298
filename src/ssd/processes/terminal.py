"""Escapes control characters in untrusted text for a terminal.

A model or a caller could write escape sequences that change the window's title, overwrite the screen or send
input to the shell. Output to a file or another program is not changed.
"""

import sys
import unicodedata

_KEPT = "\n\t"


def for_terminal(text: str) -> str:
    """The text, escaped if standard output is a terminal."""
    return escaped(text) if sys.stdout.isatty() else text


def escaped(text: str) -> str:
    return "".join(
        each if each in _KEPT or unicodedata.category(each) != "Cc" else f"\\x{ord(each):02x}"
        for each in text
    )
