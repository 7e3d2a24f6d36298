"""A process that renders chat templates: `python -m ssd.worker.template_program FD FD`, started by Templates.

A template is a program that a model folder brings, and strangers write the messages it goes through: it may
loop for ever, or take memory without end. The sandbox of transformers keeps it from the machine, not from
that. So each link has a fork with limits on processor time and memory; one that passes them ends, whoever
asked is told so, and a new fork, made at once, serves the link. A link's end ends what serves it.

Knows templates and the limits. Does not know tokenizers.
"""

import contextlib
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
from transformers.utils.chat_template_utils import render_jinja_template

PROCESSOR_SECONDS = 2.0
"""For one conversation: some ten thousand messages."""
_MEMORY_BYTES = 512 << 20
"""Beyond what a fork has at its start."""
_MEMORY_NOW = Path("/proc/self/statm")
"""Where there is none (macOS), memory cannot be limited, and the time alone bounds it."""


NO_NUMBER = -1


class Conversation(msgspec.Struct, frozen=True):
    number: int
    """By which its answer is known."""
    template: str
    messages: list[dict[str, Any]]
    options: dict[str, Any]
    """What render_jinja_template takes beside them, and what the template itself is told."""


class Rendered(msgspec.Struct, frozen=True):
    number: int = NO_NUMBER
    """Of the conversation; none: whichever its process was at when it ended."""
    text: str = ""
    refusal: str | None = None
    """Why there is no text."""


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.readline()
    links = [socket.socket(fileno=int(each)) for each in sys.argv[1:]]
    served = {_forked(link): link for link in links}
    for link in links:
        link.sendall(b"\n")  # It is ready.
    while served:
        pid, status = os.wait()
        link, ended_by = served.pop(pid), -os.waitstatus_to_exitcode(status)
        if ended_by and _is_told(link, _verdict_on_end(ended_by)):
            served[_forked(link)] = link
    return 0


def _is_told(link: socket.socket, rendered: Rendered) -> bool:
    with contextlib.suppress(OSError):  # Whoever asked is gone.
        link.sendall(msgspec.json.encode(rendered) + b"\n")
        return True
    return False


def _forked(link: socket.socket) -> int:
    """The process that serves a link, until the link ends: then its code is 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _serve(link)
            code = 0
        finally:
            os._exit(code)
    return pid


def _serve(link: socket.socket) -> None:
    _limit_memory()
    # The signal ends the process: nothing in it is asked, whatever it is at.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for asked in link.makefile("rb"):
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        said = msgspec.json.encode(_rendered(asked)) + b"\n"
        signal.setitimer(signal.ITIMER_PROF, 0)
        link.sendall(said)


def _rendered(asked: bytes) -> Rendered:
    ask = msgspec.json.decode(asked, type=Conversation)
    try:
        # As the tokenizer does: many templates fail on a field that is there and holds nothing.
        messages = [{k: v for k, v in each.items() if v is not None} for each in ask.messages]
        texts, _ = render_jinja_template([messages], chat_template=ask.template, **ask.options)
        return Rendered(ask.number, texts[0])
    except MemoryError:
        return Rendered(ask.number, refusal=_TOO_MUCH_MEMORY)
    except Exception as error:  # Whatever a template makes of unusual messages or options.
        return Rendered(ask.number, refusal=str(error)[:1000] or type(error).__name__)


_TOO_MUCH_MEMORY = f"it takes more than {_MEMORY_BYTES >> 20} MB of memory for these messages"


def _verdict_on_end(ended_by: int) -> Rendered:
    if ended_by == signal.SIGPROF:
        return Rendered(refusal=f"it takes more than {PROCESSOR_SECONDS:g} s for these messages")
    return Rendered(refusal="it failed on these messages")


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if _MEMORY_NOW.exists():
        mapped = int(_MEMORY_NOW.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + _MEMORY_BYTES, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main())
