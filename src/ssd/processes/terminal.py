"""Text of others on a terminal: control characters are shown, not carried out.

A model, or a caller of a server, can be made to write escape sequences, and those can retitle a window, move
what is on the screen, or answer the shell. Where output goes to a file or another program it stays as it is.
"""

import sys
import unicodedata

_KEPT = "\n\t"


def for_terminal(text: str) -> str:
    """The text as it may be printed on standard output."""
    return escaped(text) if sys.stdout.isatty() else text


def escaped(text: str) -> str:
    return "".join(
        each if each in _KEPT or unicodedata.category(each) != "Cc" else f"\\x{ord(each):02x}"
        for each in text
    )
