"""Where a draft is to be had: at an address that someone else serves, or as a child of our own.

Knows child processes and contacts. Nothing here blocks but `close`.
"""

import sys
import time
from collections.abc import Callable, Sequence

from ssd.draft.contact import Contact, ContactState
from ssd.draft.link import Keys, ZmqEngineLink
from ssd.draft.messages import Hello
from ssd.processes.child import Child
from ssd.processes.sockets import private_address, remove_socket

_RETRY_SECONDS = 0.5
START_SECONDS = 600.0
"""A large draft may take minutes to load; one that ends instead is noticed at once."""


class AddressSource:
    """A draft that someone else runs."""

    def __init__(
        self,
        address: str,
        hello: Hello,
        *,
        timeout: float,
        keys: Keys | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._hello, self._timeout, self._keys = address, hello, timeout, keys
        self._clock = clock
        self._not_before = 0.0

    def make_contact(self) -> Contact | None:
        if self._clock() < self._not_before:
            return None
        self._not_before = self._clock() + _RETRY_SECONDS
        link = ZmqEngineLink(self._address, self._keys)
        return Contact(link, self._hello, self._clock, timeout=self._timeout, greeting_timeout=self._timeout)

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass


def draft_command(arguments: Sequence[str], address: str) -> list[str]:
    """`ssd draft`, told `arguments`, on a private address, and gone when we are."""
    return [sys.executable, "-m", "ssd", "draft", *arguments, "--listen", address, "--lifeline"]


class ChildSource:
    """A draft process of our own."""

    def __init__(
        self,
        arguments: Sequence[str],
        hello: Hello,
        *,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`arguments` are those of `ssd draft`, without --listen."""
        self._arguments = list(arguments)
        self._hello, self._timeout, self._clock = hello, timeout, clock
        self._address = ""
        self._child: Child | None = None
        self._contact: Contact | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def make_contact(self) -> Contact | None:
        if self._child is None:
            self._address = private_address()
            command = draft_command(self._arguments, self._address)
            self._child = Child(command, name="a draft", tells_ready=True, clock=self._clock)
        if not self._child.start():
            return None
        link = ZmqEngineLink(self._address)
        self._contact = Contact(
            link, self._hello, self._clock, timeout=self._timeout, greeting_timeout=START_SECONDS
        )
        return self._contact

    def is_broken(self) -> str:
        if self._child is None or self._contact is None:
            return ""
        if self._contact.state is ContactState.READY:
            self._child.note_ready()
        code = self._child.exit_code
        if code is None:
            return ""
        still_loading = self._contact.state is ContactState.GREETING
        return f"the draft ended with code {code}{' while loading' if still_loading else ''}"

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
            remove_socket(self._address)
            self._child = None
